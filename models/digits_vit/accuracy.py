"""Compare the held-out accuracy of one or more ONNX files of the tiny ViT.

Run from the repository root as ``python -m models.digits_vit.accuracy MODEL.onnx ...``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.digits_vit.data import HELDOUT, Digits, load_heldout

__all__ = ["logits", "table"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for the files in `arguments`."""
    parser = argparse.ArgumentParser(prog="python -m models.digits_vit.accuracy")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--data", type=Path, default=HELDOUT, metavar="FILE.npz")
    parser.add_argument("--library", type=Path, help="custom-op library to register")
    options = parser.parse_args(arguments)
    digits = load_heldout(options.data)
    results = {path: logits(path, digits, options.library) for path in options.models}
    print("\n".join(table(results, digits)))
    return 0


def logits(path: Path, digits: Digits, library: Path | None = None) -> npt.NDArray[np.float32]:
    """Run the model at `path` on all digits with ONNX Runtime: float32 [n, 10]."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if library is not None:
        options.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: digits.images})
    scores: npt.NDArray[np.float32] = output
    return scores


def table(results: dict[Path, npt.NDArray[np.float32]], digits: Digits) -> list[str]:
    """Format one row for each file; the last two columns compare it with the first file."""
    first = next(iter(results.values()))
    width = max(len("model"), *(len(str(path)) for path in results))
    rows = [f"{'model':{width}}  accuracy  correct    other predictions  max logit difference"]
    for path, scores in results.items():
        predicted = scores.argmax(axis=1)
        correct = int((predicted == digits.labels).sum())
        total = len(digits.labels)
        others = int((predicted != first.argmax(axis=1)).sum())
        difference = float(np.abs(scores - first).max())
        rows.append(
            f"{path!s:{width}}  {correct / total:8.2%}  {correct:3d} of {total}  "
            f"{others:17d}  {difference:20.1e}"
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
