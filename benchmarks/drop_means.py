"""What it costs to leave out the subtraction of means that are small (`--drop-means`).

    python -m models minilm -o exports
    python -m benchmarks.drop_means exports [--most 0.05 0.1 0.2]

Of the trained models of ``benchmarks.precision`` a LayerNorm that does not fold exactly becomes an
RMSNorm where its mean is at most so much of the length of every vector that it reads on their
inputs.  Rows: benchmarks/results/drop_means.csv, with the errors of the first output against a
float64 run, mean and worst of the samples that are compared, and the largest share of all norms.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import onnxfold
from benchmarks.harness import arguments
from benchmarks.precision_subjects import Subject, trained
from benchmarks.rows import RESULTS, Row, put, tell

_ANY_ERROR = 10.0


def row(subject: Subject, most: float) -> Row:
    """Drop the means of a model that are small enough, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        for number, feed in enumerate((*subject.choosing, *subject.feeds)):
            np.savez(Path(folder, f"{number:03}.npz"), **feed)
        found = onnxfold.optimize(
            subject.model, drop_means=most, data=folder, max_error=_ANY_ERROR
        ).report["inexact"]
    norms, (output, *_) = found["norms"], found["verification"]["outputs"]
    return Row(
        model=subject.name,
        most=most,
        norms=len(norms),
        dropped=sum(norm["reason"] is None for norm in norms),
        largest_share=round(max(norm["of_length"] or 0.0 for norm in norms), 4),
        samples=found["verification"]["samples"],
        relative=round(output["mean"]["relative"], 4),
        worst_relative=round(output["worst"]["relative"], 4),
        cosine=round(output["mean"]["cosine"], 5),
        worst_cosine=round(output["worst"]["cosine"], 5),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write the rows and return the exit code."""
    options = {"exports": Path, "--most": [0.05, 0.1, 0.2], "--out": RESULTS / "drop_means.csv"}
    given = arguments(__doc__, options, words)
    for subject in trained(given.exports):
        rows = [row(subject, most) for most in given.most]
        put(given.out, rows, ("model", "most"))
        tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
