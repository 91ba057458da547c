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
from typing import Any

import numpy as np
import onnx_ir as ir

import onnxfold
from benchmarks.harness import CPU, arguments, quantiles
from benchmarks.norm_forms import exported
from benchmarks.rows import RESULTS, Row, has, put, tell
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns

FORMS = ("layer", "rms", "crms", "none")
_WORDS = 100
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


def fed(session: Any, batch: int, tokens: int) -> dict[str, Any]:
    """Return inputs: a first dimension that is free is the batch, others the tokens."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in session.get_inputs():
        free = [batch if at == 0 else tokens for at in range(len(value.shape))]
        shape = [d if isinstance(d, int) else free[at] for at, d in enumerate(value.shape)]
        if "float" in value.type:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = rng.integers(0, _WORDS, shape)
    return feeds


def measured(name: str, path: Path, folder: Path, given: argparse.Namespace) -> list[Row]:
    """Write the forms of a model, and time them in every shape."""
    import onnxruntime

    paths = {form: path if form == "layer" else folder / f"{name}-{form}.onnx" for form in FORMS}
    norms = without_norms(path, paths["none"])
    costs = dict.fromkeys(FORMS, (0.0, 0.0))
    for form in ("rms", "crms"):
        convert = partial(onnxfold.convert, path, paths[form], to=form, force=True)
        unchecked = processor_time(partial(convert, check=None), given.folds)
        costs[form] = unchecked, processor_time(partial(convert, check=2), given.folds)
    sessions = [Variant(each).session(1, (CPU,)) for each in paths.values()]
    rows = []
    for batch, tokens in SHAPES[name[:3]]:
        feeds = fed(sessions[0], batch, tokens)
        runs = [partial(session.run, None, feeds) for session in sessions]
        seconds = take_turns(runs, RunCounts(given.rounds, clock=time.thread_time))
        for form, own in zip(FORMS, seconds, strict=True):
            ratio = quantiles(seconds[0] / own, 4, ratio=50, ratio_25=25, ratio_75=75)
            saved = float(np.median(seconds[0] - own))
            fold, checked = costs[form]
            rows.append(
                Row(
                    onnxruntime=onnxruntime.__version__,
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
                    paid_after=round(fold / saved)
                    if fold and ratio["ratio_25"] > 1 and saved > 0
                    else None,
                )
            )
    return rows


def main(words: list[str] | None = None) -> int:
    options = {
        "--models": ["digits_vit", "vit-mini", "gpt-mini"],
        "--rounds": 11,
        "--folds": 3,
        "--out": RESULTS / "break_even.csv",
    }
    given = arguments(__doc__, options, words)
    for name in given.models:
        if has(given.out, model=name):
            continue
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            shipped = Path("models") / name / f"{name}.onnx"
            path = shipped if shipped.exists() else exported(name, folder)
            rows = measured(name, path, folder, given)
        put(given.out, rows, ("model",))
        tell(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
