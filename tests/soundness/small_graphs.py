"""All small graphs of linear layers, norms, sums and activations, against every subset of weights.

    python -m tests.soundness.small_graphs [--values 7]

goes through all graphs of so many values, the input x among them, of which every one is needed for
the only output, and prints the graphs on which the tool folds fewer norms than the oracle
(subset_oracle.py). A row with what both fold goes to benchmarks/results/small_graphs.csv.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import md5

import numpy as np

from benchmarks import rows
from onnxfold.model_io.load import open_source
from onnxfold.options import Folding
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import PASSES
from onnxfold.target import Target
from tests.soundness.subset_oracle import (
    C,
    Sketch,
    feeds,
    foldable_by_trial,
    layer_norm,
    to_onnx,
)

__all__ = ["Shape", "counts", "folds", "shapes", "sketch"]

# Operators in order, each with the numbers of the values that it reads; 0 is the input x.
Operator = tuple[str, tuple[int, ...]]
Shape = tuple[Operator, ...]
_UNARY = ("layer", "norm", "relu")
_CENTRING = next(each for each in PASSES if each.name == "centring")
_ALL = [str(values) for values in range(2, 8)]
_ROUNDS = 5  # of refinement, as many as the longest path


def shapes(values: int) -> Iterator[Shape]:
    """Yield the graphs of so many values with a norm, one of each that differ in order alone."""
    seen = set()
    for shape in _sequences((), values - 1):
        read = {number for _, numbers in shape for number in numbers}
        kinds = {kind for kind, _ in shape}
        if read == set(range(values - 1)) and "norm" in kinds:
            key = _key(shape)
            if key not in seen:
                seen.add(key)
                yield shape


def _sequences(before: Shape, more: int) -> Iterator[Shape]:
    """Yield all sequences, but that of independent neighbors one order alone."""
    if not more:
        yield before
        return
    known = len(before) + 1
    unary = ((kind, (number,)) for kind in _UNARY for number in range(known))
    sums = (("sum", (a, b)) for a in range(known) for b in range(a))
    for kind, numbers in (*unary, *sums):
        last = before[-1] if before else None
        apart = last is not None and known - 1 not in numbers
        if last is not None and apart and (numbers, kind) < (last[1], last[0]):
            continue
        yield from _sequences((*before, (kind, numbers)), more - 1)


def _key(shape: Shape) -> tuple[str, ...]:
    """A name for a graph up to the order of its operators: colors, refined by those around."""
    color = {0: "x", **{n: kind for n, (kind, _) in enumerate(shape, 1)}}
    for _ in range(_ROUNDS):
        around = {}
        for number, own in color.items():
            reads = shape[number - 1][1] if number else ()
            readers = (n for n, (_, read) in enumerate(shape, 1) if number in read)
            near = (sorted(color[n] for n in each) for each in (reads, readers))
            around[number] = md5(f"{own} {list(near)}".encode(), usedforsecurity=False).hexdigest()
        color = around
    return tuple(sorted(color.values()))


def sketch(shape: Shape) -> Sketch:
    """The graph with weights; every norm has a gamma and a beta."""
    made, numbers = Sketch(), np.random.default_rng(0)
    values = ["x"]
    for kind, read in shape:
        operands = [values[number] for number in read]
        if kind == "layer":
            weight = made.weight(numbers.standard_normal((C, C)) + 0.5, 1)
            values.append(made.step("MatMul", np.matmul, *operands, weight))
        elif kind == "norm":
            vectors = [made.weight(1 + numbers.random(C), None) for _ in range(2)]
            y = made.step(
                "LayerNormalization", layer_norm, *operands, *vectors, axis=-1, epsilon=1e-5
            )
            made.norms[y] = operands[0], 1
            values.append(y)
        elif kind == "relu":
            values.append(made.step("Relu", lambda a: np.maximum(a, 0), *operands))
        else:
            values.append(made.step("Add", np.add, *operands))
    made.outputs.append(values[-1])
    return made


def folds(shape: Shape) -> tuple[int, int]:
    """Return how many norms the oracle folds, and the tool."""
    made = sketch(shape)
    possible = foldable_by_trial(made, feeds(random.Random(0)))  # noqa: S311 # no secret
    settings = Settings(Target.ONNX, allow_split=0, fold=Folding.ALWAYS)
    found = _CENTRING.decide(prepare(open_source(to_onnx(made)).model).info, settings)
    return len(possible), len(found.plan.folds)


def counts(chosen: Sequence[Shape]) -> tuple[Counter[str], list[Shape]]:
    """Return the folds of both, and the graphs on which the tool is short."""
    total: Counter[str] = Counter()
    short = []
    for shape in chosen:
        possible, planned = folds(shape)
        total.update(graphs=1, oracle=possible, tool=planned, missed=max(0, possible - planned))
        if planned < possible:
            short.append(shape)
    return total, short


def main(words: Sequence[str] | None = None) -> int:
    """Go through all graphs of so many values and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness.small_graphs")
    parser.add_argument("--values", type=int, default=7)
    values: int = parser.parse_args(words).values
    total, short = counts(list(shapes(values)))
    sys.stdout.writelines(f"{shape}\n" for shape in short)
    # Of all graphs of so many values: the norms that fold by any subset of centred weights, those
    # that the plan folds, and by how many it is short, of each graph.
    folded = {name: total[name] for name in ("graphs", "oracle", "tool", "missed")}
    row = rows.Row(values=values, **folded)
    rows.merge(rows.RESULTS / "small_graphs.csv", [row], "values", {str(values)}, _ALL)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
