"""A test on tensors that end before a position shows nothing about the elements after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models
from onnxfold.proof.region import positions
from onnxfold.proof.sizes import reduced
from onnxfold.shapes import infer
from tests.graphs import model, untyped

_BEYOND = 2**63 - 1
Dims = Sequence[int | str]


def _model(kind: str, dims: Dims, number: int) -> onnx.ModelProto:
    body, constants = _KINDS[kind]
    body = body if isinstance(body, str) else body(number)
    sizes = ",".join(map(str, dims))
    arrays = {name: np.asarray(a) for name, a in constants(number).items()} | {"one": np.int64([1])}
    return untyped(model(body, f"float[{sizes}] x", "float y", arrays, 18))


def _pooled(kernel: int) -> str:
    pads = [(kernel - 1) // 2, 0] * 2
    return (
        "image = Unsqueeze(x, both) "
        f"mean = AveragePool<kernel_shape=[{kernel}, 1], pads={pads}>(image) y = Relu(mean)"
    )


_KINDS: dict[str, tuple[str | Callable[[int], str], Callable[[int], dict[str, object]]]] = {
    "slice": (
        "part = Slice(x, first, last, one) y = Relu(part)",
        lambda n: {"first": np.int64([n]), "last": np.int64([n + 100])},
    ),
    "pad": (
        "wide = Pad(x, pads) y = Slice(wide, first, last)",
        lambda n: {
            "pads": np.int64([0, n, 0, 0]),
            "first": np.int64([0, 200]),
            "last": np.int64([_BEYOND, 300]),
        },
    ),
    "gather": (
        "part = Gather<axis=1>(x, indices) y = Relu(part)",
        lambda n: {"indices": np.int64([n, n + 5])},
    ),
    "trilu": ("upper = Trilu<upper=1>(x, k) y = Relu(upper)", lambda n: {"k": np.int64(n)}),
    "topk": (
        'largest, "" = TopK(x, k) y = ReduceSum(largest, one)',
        lambda n: {"k": np.int64([n])},
    ),
    "step": (
        "part = Slice(x, first, last, one, step) y = ReduceSum(part, one)",
        lambda n: {"first": np.int64([0]), "last": np.int64([_BEYOND]), "step": np.int64([n])},
    ),
    "pool": (_pooled, lambda _: {"both": np.int64([0, 1])}),
    # x at the positions above a number, otherwise 0: positions as floating-point numbers.
    "threshold": (
        "shape = Shape(x) ones = ConstantOfShape<value = float[1] {1.0}>(shape) "
        "place = CumSum(ones, axis) above = Greater(place, least) y = Where(above, x, zero)",
        lambda n: {"least": np.float32(n), "zero": np.float32(0), "axis": np.int64(1)},
    ),
}
_STATIC = {
    "slice": (100, 300),
    "pad": (10, 20),
    "gather": (100, 300),
    "trilu": (100, 200),
    "topk": (100, 200),
    "step": (300, 400),
    "pool": (31, 61),
    "threshold": (100, 200),
}


@pytest.mark.parametrize("kind", _STATIC)
def test_other_positions_of_long_axes_are_not_taken_for_the_same(kind: str) -> None:
    first, other = (_model(kind, (1024, 1000), number) for number in _STATIC[kind])
    assert not _proved(first, other)
    assert _proved(first, first)


@pytest.mark.parametrize("kind", [kind for kind in _STATIC if kind != "threshold"])
def test_other_positions_of_symbolic_axes_are_not_taken_for_the_same(kind: str) -> None:
    assert not _proved(*(_model(kind, ("N", "M"), number) for number in _STATIC[kind]))


def _proved(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    views = [infer(prepare(ir.from_proto(side)).model) for side in (before, after)]
    return prove_models(*views, Certificate()).passed


def test_integers_of_attributes_and_constants_may_be_positions() -> None:
    pool = ir.from_proto(_model("pool", (8, 8), 31))
    constants = [np.int64([-7, 3, _BEYOND]), np.float32([9]), np.float32([2.5])]
    assert positions(pool.graph, constants) == {31, 15, 7}
    assert positions(pool.graph, constants, floats=True) == {31, 15, 9, 7}


def test_reduced_sizes_stay_distinct_multiples_and_behind_positions() -> None:
    smaller = reduced([12, 64, 768, 1000, 3072], {12, 100}, keep=[1000])
    sizes = {size: smaller.get(size, size) for size in (12, 64, 768, 1000, 3072)}
    assert len(set(sizes.values())) == 5
    assert sizes[12] == 12 < sizes[64] < 64
    assert sizes[768] > 2 * 100
    assert sizes[768] % sizes[64] == sizes[3072] % sizes[768] == 0
    assert sizes[1000] == 1000


@pytest.mark.parametrize("heads", [(12, 64), (4, 3, 64), (24, 32)], ids=str)
def test_factors_of_a_size_that_is_kept_are_kept(heads: tuple[int, ...]) -> None:
    """A Reshape into heads fits the smaller tensors; where 768 is reduced, 64 may be."""
    sizes = [*heads, 512, 768]
    assert reduced(sizes, (), keep=[768]).keys() == {512}
    assert 64 in reduced([12, 64, 512, 768], (), keep=[])
    assert reduced([64, 512, 768], (), keep=[768]).keys() == {64, 512}  # nothing splits 768


_SIZES = st.sets(
    st.one_of(st.integers(2, 80), st.builds(lambda a, b: a * b, *2 * [st.integers(2, 64)])),
    max_size=7,
)


@given(_SIZES, st.sets(st.integers(2, 100), max_size=2), st.data())
def test_reduced_sizes_are_distinct_products_beyond_all_positions(
    drawn: set[int], integers: set[int], data: st.DataObject
) -> None:
    """What a Reshape splits or joins in the model, it splits or joins in the smaller tensors."""
    sizes = sorted(drawn | {a * b for a in drawn for b in drawn if a * b < 2000})
    keep = data.draw(st.sets(st.sampled_from(sizes), max_size=2)) if sizes else set[int]()
    smaller = reduced(sizes, integers, keep)
    of = {size: smaller.get(size, size) for size in sizes}
    assert len(set(of.values())) == len(sizes)
    assert not keep & smaller.keys()
    assert all(of[a] * of[b] == of[a * b] for a in sizes for b in sizes if a * b in of)
    assert all(n > p for size, n in smaller.items() for p in integers if p < size)
