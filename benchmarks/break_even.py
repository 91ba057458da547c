"""What norms cost in small models, what a fold costs, and after how many runs it has paid.

    python -m benchmarks.break_even [--models vit-mini gpt-mini vit-ti] [--rounds 11] [--out ...csv]

Tables 4 to 6 of "Enjoy your Layer Normalization ..." and section 4 of "Pre-RMSNorm and Pre-CRMSNorm
Transformers ...".  Plain torch models (untrained), exported; their LayerNorms as they are, as
RMSNorms and as CRMSNorms (`onnxfold convert`, standard operators), and without any norm, which is
another function and the bound of all forms.  All are timed in turns in ONNX Runtime, by the
processor time of one thread, which other work does not lengthen as it does the time on the clock.

``ratio``: the median over the rounds of LayerNorm's time to the form's.  ``fold_seconds``: the
processor time of `onnxfold.convert` in a process that has imported it, without the check, and
``checked_seconds`` with it; the least of ``--folds`` calls.  ``paid_after``: runs until the time
that a run saves adds up to the fold's without the check; empty where the lower quartile of the
ratio is not above 1.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import onnxfold
from benchmarks.harness import arguments, quantiles, timed
from benchmarks.norm_forms import exported, fed
from benchmarks.rows import RESULTS, Row, has, put, tell
from onnxfold.runtime.interleaved_timing import RunCounts, Variant

FORMS = ("layer", "rms", "crms", "none")
# Batch and, where a model reads text, tokens.
SHAPES = {"vit": ((1, 0), (4, 0)), "gpt": ((1, 64), (1, 256), (4, 64)), "dig": ((8, 0),)}


def without_norms(path: Path, written: Path) -> int:
    """Write a model whose LayerNormalizations give what they read; return how many it had."""
    model = ir.load(path)
    norms = [node for node in model.graph if node.op_type == "LayerNormalization"]
    for node in norms:
        for read in node.inputs[:1]:
            ir.convenience.replace_all_uses_with(node.outputs[:1], [read])
        model.graph.remove(node, safe=True)
    ir.save(model, written)
    return len(norms)


def processor_time(call: Callable[[], object], times: int) -> float:
    """Return the least processor time of some calls."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def measured(name: str, path: Path, folder: Path, given: argparse.Namespace) -> list[Row]:
    """Write the forms of a model, and time them in every shape."""
    paths = {form: path if form == "layer" else folder / f"{name}-{form}.onnx" for form in FORMS}
    norms = without_norms(path, paths["none"])
    costs = dict.fromkeys(FORMS, (0.0, 0.0))
    for form in ("rms", "crms"):
        convert = partial(onnxfold.convert, path, paths[form], to=form, force=True)
        unchecked = processor_time(partial(convert, check=None), given.folds)
        costs[form] = unchecked, processor_time(partial(convert, check=2), given.folds)
    rows, turns = [], RunCounts(given.rounds, clock=time.thread_time)
    for batch, tokens in SHAPES[name[:3]]:
        seconds = timed([Variant(each) for each in paths.values()], fed(path, batch, tokens), turns)
        for form, own in zip(FORMS, seconds, strict=True):
            ratio = quantiles(seconds[0] / own, 4, ratio=50, ratio_25=25, ratio_75=75)
            saved = float(np.median(seconds[0] - own))
            fold, checked = costs[form]
            paid = fold and ratio["ratio_25"] > 1 and saved > 0
            row = Row(
                onnxruntime=ort.__version__,
                threads=1,
                model=name,
                weight_bytes=path.stat().st_size,
                norms=norms,
                batch=batch,
                tokens=tokens,
                form=form,
                rounds=len(own),
                milliseconds=round(1e3 * float(np.median(own)), 4),
                **ratio,
                fold_seconds=round(fold, 3),
                checked_seconds=round(checked, 3),
                paid_after=round(fold / saved) if paid else None,
            )
            rows.append(row)
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure the models that the file lacks."""
    options = {
        "--models": ["digits_vit", "vit-mini", "gpt-mini"],
        "--rounds": 11,
        "--folds": 3,
        "--out": RESULTS / "break_even.csv",
    }
    given = arguments(__doc__, options, words)
    for name in given.models:
        if not has(given.out, model=name):
            with tempfile.TemporaryDirectory() as folder:
                shipped = Path("models") / name / f"{name}.onnx"
                path = shipped if shipped.exists() else exported(name, Path(folder))
                rows = measured(name, path, Path(folder), given)
            put(given.out, rows, ("model",))
            tell(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
