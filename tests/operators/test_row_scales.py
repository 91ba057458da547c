"""One positive number per row through every operator, against the operator's own numbers."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from onnxfold.graph import ModelInfo
from onnxfold.operators import facets
from onnxfold.operators.row import Elements, Operator
from onnxfold.operators.table import ROWS, row_of
from onnxfold.passes.deferral.row_scale import Rows, RowScale, passed_on
from tests.lanes import some
from tests.operators.rows import name_of
from tests.operators.sample import Array, Draw, Sample
from tests.operators.sampled_others import OTHERS
from tests.operators.samplers import SAMPLERS

_SAMPLES = 150
_SAMPLERS = {**SAMPLERS, **OTHERS}
_ROWS = [
    row for row in ROWS.values() if row.elements <= Elements.HOMOGENEOUS and row.key in _SAMPLERS
]
# Operators that hand a scale on; what is not named here ends it, which is always right.
_HANDING_ON = frozenset(
    "Abs Add BiasAdd Cast CastLike Concat Div Dropout Expand Gather Gemm Identity LeakyRelu MatMul "
    "Max Mean Min Mul Neg PRelu Relu Reshape Flatten RotaryEmbedding Slice Split Squeeze Sub Sum "
    "Transpose Unsqueeze Where".split()
)


def _layout(draw: Draw, rank: int) -> Rows:
    """Some axes of a value, in any order, are the rows."""
    places = draw.shuffled(range(rank))
    return tuple((place,) if draw.chance(0.6) else () for place in places)


def _scaled(draw: Draw, sample: Sample, shared: Rows) -> dict[int, RowScale]:
    """Inputs that the operator may scale, with one layout, aligned from the right."""
    row = row_of(next(iter(sample.view().nodes())))
    given = [i for i, operand in enumerate(sample.operands) if operand is not None]
    data = [i for i in facets.data_inputs(row, len(sample.operands)) if i in given]
    chosen = draw.pick(
        [list(some) for count in range(1, len(data) + 1) for some in combinations(data, count)]
    )
    found = {}
    for index in chosen:
        operand = sample.operands[index]
        if operand is None or operand.array.dtype.kind != "f":
            return {}
        rank = operand.array.ndim
        rows = shared[len(shared) - rank :] if rank else ()
        degree = draw.number(1, 2) if row.alone else 1
        found[index] = RowScale(degree, rows)
    return found


def _sizes(sample: Sample, scaled: dict[int, RowScale]) -> dict[int, int] | None:
    """The size of each axis of s; None if two values disagree."""
    sizes: dict[int, int] = {}
    for index, scale in scaled.items():
        operand = sample.operands[index]
        assert operand is not None
        for dim, merged in zip(operand.array.shape, scale.rows, strict=True):
            if merged and sizes.setdefault(merged[0], dim) != dim:
                return None
    return sizes


def _spread(s: Array, axes: list[int], rows: Rows) -> Array:
    """s with its axes where ``rows`` says, and size 1 elsewhere."""
    wanted = [row for merged in rows for row in merged]
    gone = tuple(axes.index(axis) for axis in axes if axis not in wanted)
    if any(s.shape[axis] != 1 for axis in gone):
        raise AssertionError("a row of several elements is gone")
    kept = [axis for axis in axes if axis in wanted]
    moved = s.reshape([s.shape[axes.index(axis)] for axis in kept])
    moved = moved.transpose([kept.index(row) for row in wanted])
    sizes = [math.prod(s.shape[axes.index(row)] for row in merged) for merged in rows]
    return moved.reshape(sizes)


def _check(sample: Sample, draw: Draw) -> bool:
    """Whether the scale was handed on; raises AssertionError where the numbers say otherwise."""
    info: ModelInfo = sample.view()
    node = next(iter(info.nodes()))
    ranks = [operand.array.ndim for operand in sample.operands if operand is not None]
    scaled = _scaled(draw, sample, _layout(draw, max(ranks)))
    sizes = _sizes(sample, scaled) if scaled else None
    passed = passed_on(info, node, scaled) if sizes is not None and scaled else None
    if passed is None or sizes is None:
        return False
    axes = sorted(sizes)
    s = np.exp(draw.normal([sizes[axis] for axis in axes]))
    arrays = sample.arrays()
    for index, scale in scaled.items():
        old = arrays[index]
        assert old is not None
        arrays[index] = (old * _spread(s, axes, scale.rows) ** scale.degree).astype(old.dtype)
    evaluate = sample.evaluator()
    found, plain = evaluate(arrays), evaluate(sample.arrays())
    read = plain if facets.scales_every_output(row_of(node)) else plain[:1]
    for before, after in zip(read, found, strict=False):
        assert len(passed.rows) == before.ndim
        wanted = before * _spread(s, axes, passed.rows) ** passed.degree
        # Sums of fewer than 100 numbers, in the precision of the sample.
        bound = 1e3 * sample.tolerance * max(1.0, float(np.abs(wanted).max(initial=0)))
        narrow = float(np.finfo(before.dtype).eps) if before.dtype.itemsize < 8 else 0.0
        size = max(1.0, float(np.abs(wanted.astype(np.float64)).max(initial=0)))
        assert np.all(np.abs(after - wanted) <= bound + 8 * narrow * size)
    return True


@pytest.mark.parametrize("row", some(_ROWS, each=2), ids=name_of)
def test_a_scale_of_rows_comes_out_as_it_is_said(row: Operator) -> None:
    tally: Counter[bool] = Counter()
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        tally[_check(_SAMPLERS[row.key](draw), draw)] += 1
    assert bool(tally[True]) == (row.op_type in _HANDING_ON)  # or the numbers show nothing


def test_what_is_not_homogeneous_ends_a_scale() -> None:
    """A bias, an activation and the sum with what is not scaled, which would be wrong."""
    add, gemm, sigmoid = (ROWS["", name] for name in ("Add", "Gemm", "Sigmoid"))
    assert facets.degree(add, add.elements, {0: 1}, (0, 1)) is None
    assert facets.degree(gemm, gemm.elements, {0: 1}, (0, 1, 2)) is None
    assert facets.degree(sigmoid, sigmoid.elements, {0: 1}, (0,)) is None
    assert facets.degree(gemm, gemm.elements, {0: 1}, (0, 1)) == 1
    assert facets.degree(add, add.elements, {0: 2, 1: 2}, (0, 1)) == 2
    assert facets.degree(ROWS["", "Mul"], Elements.LINEAR, {0: 1, 1: 1}, (0, 1)) == 2
