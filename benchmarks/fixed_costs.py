"""Time of a norm and its replacements in ONNX Runtime, for few and for many elements.

    python -m benchmarks.fixed_costs [--rounds 61] [--out benchmarks/results/fixed_costs.csv]

Each method is a session of 32 links in a row, on one thread; all methods of a shape are timed in
turns, by processor time. Other work on the machine only adds to it: `us` is the 10th percentile of
the rounds, for one link, `of_layer_norm` its ratio to LayerNormalization's. The replacement of a
norm is cheaper for many elements, and dearer by an operator for few: ``onnxfold/targets/costs.py``
takes from here the cost of an operator of any size (`Costs.operator`, an Add of one row), and of a
row of an Add (`Costs.row`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import onnxruntime as ort

from benchmarks.harness import arguments
from benchmarks.kernel_methods import bound
from benchmarks.rows import RESULTS, Row, tell, write
from onnxfold.runtime.interleaved_timing import RunCounts, take_turns

__all__ = ["METHODS", "main", "measured"]

LINKS = 32
SIZES = (32, 96, 192, 384, 768)
ROWS = (1, 16, 64, 256)
LEAST_SECONDS = 0.002  # of one turn
LAYER = "LayerNormalization"
# What the operators of a link are, with their inputs and outputs.
METHODS = {
    LAYER: "LayerNormalization y{0} scale bias -> y{1}",
    "RMS norm": "SimplifiedLayerNormalization y{0} scale -> y{1}",
    "RMS norm + Add of beta": "SimplifiedLayerNormalization y{0} scale -> n{1}; "
    "Add n{1} bias -> y{1}",
    "ReduceMean + Sub": "ReduceMean y{0} axes -> m{1}; Sub y{0} m{1} -> y{1}",
    "Add of beta": "Add y{0} bias -> y{1}",
    "Add + LayerNormalization, joined": "SkipLayerNormalization y{0} s scale bias -> y{1}",
    "Sum + LayerNormalization": "Sum y{0} s -> t{1}; LayerNormalization t{1} scale bias -> y{1}",
    "Add + RMS norm": "Add y{0} s -> t{1}; SimplifiedLayerNormalization t{1} scale -> y{1}",
}


def measured(rows: int, size: int, rounds: int) -> Iterator[Row]:
    """Yield a row for each method at one shape."""
    runs = [bound(link, LINKS, (1, rows, size)).run for link in METHODS.values()]
    turns = RunCounts(rounds, turn_s=LEAST_SECONDS, clock=time.process_time)
    best = np.percentile(take_turns(runs, turns) / LINKS, 10, axis=1)
    for method, spent in zip(METHODS, best, strict=True):
        yield Row(
            onnxruntime=ort.__version__,
            method=method,
            rows=rows,
            size=size,
            us=round(float(spent) * 1e6, 3),
            of_layer_norm=round(float(spent / best[0]), 3),
        )


def main(words: Sequence[str] | None = None) -> int:
    """Measure every shape, and write the rows."""
    options = {"--rounds": 61, "--out": RESULTS / "fixed_costs.csv"}
    chosen, found = arguments(__doc__, options, words), list[Row]()
    for size, rows in product(SIZES, ROWS):
        found += measured(rows, size, chosen.rounds)
        tell(found[-len(METHODS) :])
    write(chosen.out, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
