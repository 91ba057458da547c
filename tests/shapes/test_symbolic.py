"""Symbolic shapes and vectors, against runs with numbers in the place of the symbols."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from onnxfold.graph import ModelInfo
from onnxfold.shapes import infer
from onnxfold.shapes.named_sizes import Size, SymbolicShape, equal, fits, same_elements
from onnxfold.shapes.symbolic import SymbolicShapes
from tests.shapes.programs import RUNS, Program, sized

_SETTINGS = settings(max_examples=300, deadline=None, derandomize=True, database=None)
_dims = st.lists(st.sampled_from((1, 2, 3, "n", "m")), max_size=3).map(tuple)


def _broadcast(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(small, large)
    except ValueError:
        return None


@_SETTINGS
@given(_dims, _dims)
def test_what_fits_never_changes_the_larger_shape(
    small: SymbolicShape, large: SymbolicShape
) -> None:
    pairs = [
        (sized(small, {"n": n, "m": m}), sized(large, {"n": n, "m": m}))
        for n in (1, 2, 3)
        for m in (1, 2, 3)
    ]
    assert fits(small, large) == all(_broadcast(*pair) == pair[1] for pair in pairs)
    assert not fits(None, large)
    assert not fits(small, None)


@_SETTINGS
@given(_dims, _dims)
def test_shapes_of_as_many_elements_are_the_same_where_no_sizes_tell_them_apart(
    a: SymbolicShape, b: SymbolicShape
) -> None:
    pairs = [
        (sized(a, {"n": n, "m": m}), sized(b, {"n": n, "m": m}))
        for n in range(1, 10)
        for m in range(1, 10)
    ]
    possible = [pair for pair in pairs if prod(pair[0]) == prod(pair[1])]
    alike = len(a) == len(b) and all(one == other for one, other in possible)
    assert not same_elements(a, b) or alike
    if alike and possible and sum(x != y for x, y in zip(a, b, strict=True)) <= 1:
        assert same_elements(a, b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [("n", "n", True), ("n", "m", None), ("n", 4, None), ("n", -1, False), (4, 4, True),
     (4, 3, False)],
)  # fmt: skip
def test_names_are_equal_to_themselves_and_to_no_negative_number(
    a: Size, b: Size, expected: bool | None
) -> None:
    assert equal(a, b) is equal(b, a) is expected


def test_of_shapes_without_elements_no_size_follows_from_the_others() -> None:
    assert same_elements(("n", 2), ("m", 2))
    assert not same_elements(("n", 0), ("m", 0))
    assert not same_elements(None, ("n",))
    assert not same_elements(("n",), None)


def test_of_two_names_neither_is_that_of_their_sum() -> None:
    """One of the sizes may be 1."""
    graph = (
        "g (float[n] x, float[m] z, float[n] w) => (float[A] y) { s = Add (x, z) y = Add (x, w) }"
    )
    view = infer(
        ir.from_proto(parser.parse_model(f'<ir_version: 7, opset_import: ["" : 13]> {graph}'))
    )
    values, symbolic = view.by_ref(), SymbolicShapes(view)
    assert symbolic.dims(values["s"]) not in (("n",), ("m",))
    assert symbolic.dims(values["y"]) == ("n",)


_LAYERS = """
g (float[n, 1, m, 4] x, float[2, 4, k] y, float[4, m] a, float[k, 4] b, float[k, m] p,
   float[1, m] row) => (float[A] z) {
  z = MatMul (x, y)  turned = Gemm <transA = 1, transB = 1> (a, b)  same = MatMul (a, x)
  pairs = Einsum <equation = "...ij,kj->i...k"> (x, b)
  batches = Einsum <equation = "...ij,...ij->...i"> (x, x)
  other = Einsum <equation = "...i,...i->..."> (a, p)
  one = Einsum <equation = "...i,...i->..."> (a, row)
}
"""


def test_products_have_the_rows_and_columns_of_their_operands() -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {_LAYERS}')
    view = infer(ir.from_proto(model))
    values, symbolic = view.by_ref(), SymbolicShapes(view)
    assert _derived(symbolic, values["z"]) == ("n", 2, "m", "k")
    assert _derived(symbolic, values["turned"]) == ("m", "k")
    assert _derived(symbolic, values["same"]) == ("n", 1, 4, 4)
    assert _derived(symbolic, values["pairs"]) == ("m", "n", 1, "k")
    assert _derived(symbolic, values["batches"]) == ("n", 1, "m")
    assert _derived(symbolic, values["other"]) == (4,)
    assert _derived(symbolic, values["one"]) == (4,)


_REDUCTIONS = """
g (float[n, 1, m, 4] x, int64[k] open) => (float[A, B, C, D] y)
<int64[2] some = {1, -1}, int64[0] none = {}> {
  odd = com.microsoft.Whatever (x)  y = ReduceMean (x, some)
  less = ReduceMean <keepdims = 0> (x, some)  every = ReduceMean <keepdims = 0> (x, none)
  same = ReduceMean <noop_with_empty_axes = 1> (x, none)  unknown = ReduceMean (x, open)
  hidden = ReduceMean (odd, some)
}
"""


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("y", ("n", 1, "m", 1)),
        ("less", ("n", "m")),
        ("every", ()),
        ("same", ("n", 1, "m", 4)),
        ("unknown", None),
        ("hidden", None),
    ],
)
def test_a_reduction_leaves_the_axes_that_it_does_not_name(
    name: str, shape: SymbolicShape | None
) -> None:
    imports = '"" : 18, "com.microsoft" : 1'
    model = parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {_REDUCTIONS}")
    view = infer(ir.from_proto(model))
    assert _derived(SymbolicShapes(view), view.by_ref()[name]) == shape


@pytest.mark.parametrize(
    ("element", "attributes", "shape"),
    [
        ("x", "axis = 0, new_axis = 1", ("y@0", "n", 4)),
        ("x", "axis = 2, new_axis = 1", ("n", 4, "y@2")),
        ("x", "axis = -1, new_axis = 1", ("n", 4, "y@2")),
        ("x", "axis = -3, new_axis = 1", ("y@0", "n", 4)),
        ("x", "axis = 3, new_axis = 1", None),
        ("x", "axis = -4, new_axis = 1", None),
        ("scalar", "axis = 0, new_axis = 1", ("y@0",)),
        ("scalar", "axis = 1, new_axis = 1", None),
        ("x", "axis = 0", None),
        ("odd", "axis = 0, new_axis = 1", None),
        ("x, z", "axis = 0, new_axis = 1", None),
    ],
)
def test_elements_of_one_shape_are_stacked_along_a_new_axis(
    element: str, attributes: str, shape: SymbolicShape | None
) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[n, 4] x, float[m, 4] z, float scalar) => (float[A, B, C] y) {{
          odd = com.microsoft.Whatever (x)  parts = SequenceConstruct ({element})
          y = ConcatFromSequence <{attributes}> (parts) }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    view = ModelInfo(ir.from_proto(model))
    assert _derived(SymbolicShapes(view), view.by_ref()["y"]) == shape


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ("{0, 1}", (2, 3)),
        ("{-2, -1}", (2, 3)),
        ("{1, 0}", (7, 2)),
        ("{0, 2}", None),
        ("{-3, 0}", None),
    ],
)
def test_a_slice_cuts_the_axes_that_it_names(axes: str, shape: SymbolicShape | None) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[8, 4] x) => (float[A, B] y)
        <int64[2] start = {{2, 1}}, int64[2] end = {{4, 9}}, int64[2] axes = {axes}> {{
          y = Slice (x, start, end, axes) }}"""
    )
    view = ModelInfo(ir.from_proto(model))
    assert _derived(SymbolicShapes(view), view.by_ref()["y"]) == shape


def test_a_slice_of_opset_10_cuts_its_axis() -> None:
    """onnx 1.23 gives it the size from before the cut, by its name."""
    graph = """
    g (float[n, 4] x) => (float[A, B] y) <int64[1] zero = {0}, int64[1] one = {1}> {
      y = Slice (x, zero, one) z = Slice (x, zero, one, one) }
    """
    model = parser.parse_model(f'<ir_version: 5, opset_import: ["" : 10]> {graph}')
    view = infer(ir.from_proto(model))
    cut, columns = view.shape(view.by_ref()["y"]), view.shape(view.by_ref()["z"])
    assert cut is not None
    assert cut[0] != "n"
    assert cut[1] == 4
    assert columns == ("n", 1)


def _assert_told(told: SymbolicShape, true: list[int], names: dict[str, int]) -> int:
    """Compare sizes with numbers, and each name with its first number; count the known ones."""
    assert len(told) == len(true)
    known = 0
    for size, number in zip(told, true, strict=True):
        factors = [names.get(part, part) for part in str(size).split("*")]
        if all(str(part).lstrip("-").isdigit() for part in factors):
            assert prod(map(int, factors)) == number, (told, true)
            known += 1
        else:
            assert names.setdefault(str(size), number) == number, (told, true)
    return known


def _derived(symbolic: SymbolicShapes, value: ir.Value) -> SymbolicShape | None:
    """Return what our own rule tells where onnx has an answer already."""
    node = value.producer()
    assert node is not None
    return symbolic.derived(node, value)


@pytest.mark.parametrize("opset", [9, 10, 13, 15])
def test_what_is_told_of_sizes_is_so_in_every_run(opset: int) -> None:
    known = total = 0
    for seed in range(60):
        program = Program(random.Random(100 * opset + seed), opset)  # noqa: S311  # no secret
        view = infer(program.model())
        symbolic, values = SymbolicShapes(view), view.by_ref()
        for sizes, run in zip(RUNS, program.runs, strict=True):
            names = dict(sizes)
            for node in program.nodes:
                value, array = values[node.output[0]], run[node.output[0]]
                total += array.ndim
                shape, vector = symbolic.dims(value), symbolic.vector(value)
                derived = _derived(symbolic, value)
                if shape is not None:
                    known += _assert_told(shape, list(array.shape), names)
                if derived is not None:
                    _assert_told(derived, list(array.shape), names)
                if vector is not None:
                    _assert_told(vector, [int(n) for n in array.reshape(-1)], names)
    assert known > 0.6 * total
