"""Exactness of scaled and rotated streams: every small recipe in float32, before and after.

    python -m benchmarks.bases [--recipes gpt2 ..] [--samples 3]

Each export of tests/recipes is rewritten with its streams divided by 2^6, rotated by a Hadamard and
by a random matrix, and both at once; the file is compared with the float64 run of the export, by
the criterion of a fold.  Rows go to benchmarks/results/bases.csv, those of a recipe in the place of
its old ones: ``noise_ratio`` is the error in multiples of the export's own, which may be ``limit``;
``refused`` is the reason where nothing is written.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, put, tell
from onnxfold.errors import ModelError

_FOLDER: Final = Path(__file__).resolve().parents[1] / "tests" / "recipes"
_SCALE: Final = {"scale_streams": 6}
_TURN: Final = {"rotate": "hadamard"}
CHANGES: Final[Mapping[str, dict[str, Any]]] = {
    "scaled": _SCALE,
    "rotated": _TURN,
    "rotated at random": {"rotate": "random", "rotation_seed": 1},
    "scaled and rotated": {**_SCALE, **_TURN},
}
_KINDS: Final = ("scaled_streams", "rotated_streams", "rotated_heads")
_ANY_SIZE: Final = 1 << 62


def row(name: str, model: onnx.ModelProto, change: str, samples: int) -> Row:
    """Rewrite a recipe, check it and return its row; raises VerificationError where it is wrong."""
    refused, report = "", dict[str, Any]()
    try:
        report = onnxfold.optimize(
            model, check=samples, allow_split=_ANY_SIZE, **CHANGES[change]
        ).report
    except ModelError as error:
        refused = str(error)
    check = report.get("verification") or {}
    return Row(
        recipe=name,
        change=change,
        **{kind: len(report.get(kind, {}).get("streams", ())) for kind in _KINDS},
        samples=check.get("samples", 0),
        noise_ratio=round(check["noise_ratio"], 3) if check else None,
        limit=check.get("limit"),
        max_abs_error=float(f"{check['max_abs_error']:.2g}") if check else None,
        refused=refused,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for and return the exit code."""
    known = tuple(sorted(path.stem for path in _FOLDER.glob("*.onnx")))
    options = {"--recipes": known, "--samples": 3, "--out": RESULTS / "bases.csv"}
    given = arguments(__doc__, options, words)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for name in given.recipes:
        model = onnx.load(_FOLDER / f"{name}.onnx")
        rows = [row(name, model, change, given.samples) for change in CHANGES]
        put(given.out, rows, ("recipe",))
        tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
