"""Time of whole models in other runtimes, before and after `onnxfold optimize`.

    python -m benchmarks.runtimes [EXPORTS] [--runtimes NAME ..] [--models NAME ..] [--rounds N]

EXPORTS holds NAME.onnx or NAME/model.onnx for the recipes of ``models``; what is missing is
exported there first.  All sizes are fixed, since tract wants them so: sequences of 128 tokens, one
picture.  The original and the file for the default target are loaded in one process of the
runtime's own environment (``tests/compatibility``), and take turns with one thread in float32; the
ratio is the median over the rounds of our time to the original's, so that less than 1 is faster.

Prints the rows and appends them to benchmarks/results/runtimes.csv.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed

import onnxfold
from benchmarks.harness import arguments, quantiles
from benchmarks.rows import RESULTS, Row, append, tell
from benchmarks.subjects import SUBJECTS, Subject, export_of
from onnxfold import model_io
from tests.compatibility.environments import ENVIRONMENTS, ready
from tests.compatibility.subjects import RUNTIMES as ALL
from tests.compatibility.work import answers

__all__ = ["main"]

RUNTIMES: Final = ("OpenVINO", "tract")
MODELS: Final = ("vit-b16", "bert-base", "minilm", "gpt2")
_SIZES: Final = {"sequence": 128, "batch": 1}
_LIMIT_S = 1200.0


def fixed(source: Path, shapes: dict[str, list[int]], path: Path) -> None:
    """Write the model with these shapes of its inputs; shapes that followed from others go."""
    model = onnx.load(source)
    for name, shape in shapes.items():
        make_input_shape_fixed(model.graph, name, shape)
    del model.graph.value_info[:]
    fix_output_shapes(model)
    onnx.save(model, path)


def measure(runtime: str, subject: Subject, exports: Path, rounds: int) -> Row:
    """Time both files of a model in one process of the runtime."""
    its = next(each for each in ALL if each.name == runtime)
    environment = ready(ENVIRONMENTS[its.environment])
    size = _SIZES[subject.axis]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = export_of(subject.recipe, exports)
        feeds = subject.feeds(source, size)
        models = {form: str(folder / f"{form}.onnx") for form in ("original", "onnx")}
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        fixed(source, shapes, Path(models["original"]))
        onnxfold.optimize(models["original"], models["onnx"], check=None)
        job = {
            "action": "time",
            "subject": its.function,
            "models": models,
            "inputs": described(model_io.load(Path(models["original"])), feeds, folder),
            "rounds": rounds,
        }
        (answer,) = answers(environment.command(), [job], environment.variables(), _LIMIT_S)
    if answer["outcome"] != "ok":
        raise SystemExit(f"{runtime}, {subject.name}: {answer['text']}")
    original, ours = (np.array(answer["times"][form]) for form in models)
    # One model in one runtime; `p10` and `p90` are of the rounds' ratios.
    return Row(
        runtime=runtime,
        version=environment.version(its.package),
        model=subject.name,
        axis=subject.axis,
        size=size,
        rounds=len(ours),
        original_ms=round(1e3 * float(np.median(original)), 3),
        onnx_ms=round(1e3 * float(np.median(ours)), 3),
        **quantiles(ours / original, 4, ratio=50, p10=10, p90=90),
    )


def described(model: ir.Model, feeds: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Write the arrays as files, and say of them what the workers read, in the model's order."""
    found = []
    for value in model.graph.inputs:
        array, file = feeds[str(value.name)], folder / f"{value.name}.raw"
        array.tofile(file)
        found.append(
            {
                "name": value.name,
                "dtype": str(array.dtype),
                "shape": array.shape,
                "file": str(file),
            }
        )
    return found


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(
        __doc__,
        {
            "exports": {"type": Path, "nargs": "?", "default": Path("build/bench")},
            "--runtimes": RUNTIMES,
            "--models": {"nargs": "+", "choices": tuple(SUBJECTS), "default": MODELS},
            "--rounds": 21,
            "--out": RESULTS / "runtimes.csv",
        },
        words,
    )
    given.exports.mkdir(parents=True, exist_ok=True)
    for runtime in given.runtimes:
        for name in given.models:
            row = measure(runtime, SUBJECTS[name], given.exports, given.rounds)
            append(given.out, [row])
            tell([row])


if __name__ == "__main__":
    main()
