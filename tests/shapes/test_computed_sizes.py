"""Vectors of sizes that a model computes, and the shapes that are made with them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from onnxfold.graph import ModelInfo
from onnxfold.shapes import infer
from onnxfold.shapes.named_sizes import SymbolicShape
from onnxfold.shapes.symbolic import SymbolicShapes

_CHOICE = """
g (float[n, 4] x, float[1, 4] row) => (float[A, B] y)
<int64[1] first = {0}, int64[1] minus = {-1}, int64[2] none = {-1, -1}, int64[2] ones = {1, 1}> {
  shape = Shape (x)  size = Gather <axis = 0> (shape, first)
  target = Concat <axis = 0> (size, minus)  kept = Equal (target, none)
  sizes = Where (kept, ones, target)  y = Expand (row, sizes)
}
"""


def test_a_size_that_an_export_leaves_to_expand_is_known() -> None:
    """PyTorch's expand by TorchScript: a size of -1 stays, which no size that is computed is."""
    view = infer(
        ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {_CHOICE}'))
    )
    assert SymbolicShapes(view).dims(view.by_ref()["y"]) == ("n", 4)


_POSITIONS = """
g (float[n, m, 4] x, float[n, k, 4] z) => (float[A, B, C] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
 float[1, 5, 4] table, float[1, 1, 4] row, float[1, 0, 4] empty, int64 first = {0},
 int64 step = {1}, int64[1] nine = {9}, int64[1] minus = {-1}> {
  shape = Shape (x)  size = Gather <axis = 0> (shape, one)  length = Squeeze (size)
  counted = Range (first, length, step)  cut = Slice (table, zero, size, one)
  kept = Slice (row, zero, size, one)  later = Slice (table, one, size, one)
  every = Slice (table, zero, size, one, two)  steps = Add (size, one)
  odd = Slice (table, zero, size, one, steps)  nothing = Slice (empty, zero, size, one)
  far = Sub (zero, nine)  turned = Slice (table, far, nine, one, minus)  y = Add (x, cut)
  single = Add (x, kept)  behind = Add (x, later)  other = Add (z, cut)
  thinned = Add (x, every)  spread = Add (x, odd)  gone = Add (x, nothing)
}
"""


def test_positions_that_are_cut_to_the_length_have_the_length() -> None:
    """Those of a table of five for at most five; where the length is more, no Add takes them."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {_POSITIONS}')
    view = infer(ir.from_proto(model))
    values, symbolic = view.by_ref(), SymbolicShapes(view)
    assert symbolic.dims(values["counted"]) == ("m",)
    assert symbolic.dims(values["y"]) == symbolic.dims(values["single"]) == ("n", "m", 4)
    for name in ("behind", "other", "thinned", "spread", "gone"):
        assert symbolic.dims(values[name]) != ("n", "m", 4), name
    for name in ("cut", "later", "every", "odd", "nothing"):
        told = symbolic.dims(values[name])
        assert told is not None, name
        assert told[1] != "m", name
    # Of a step backwards from before the first element, ONNX takes the first and Python none.
    turned = symbolic.dims(values["turned"])
    assert turned is not None
    assert isinstance(turned[1], str)


_QUOTIENTS = """
g (float[n, 7, 6] x) => (int64[1] y)
<int64[1] one = {1}, int64[1] two = {2}, int64[1] zero = {0}> {
  shape = Shape (x)  sizes = Identity (shape)  seven = Gather (sizes, one)
  six = Gather (sizes, two)  odd = Cast <to = 1> (seven)  even = Cast <to = 1> (six)
  by = Cast <to = 1> (two)  y = Div (seven, two)  fraction = Div (odd, by)
  whole = Div (even, by)  none = Div (seven, zero)  nothing = Sub (seven, seven)
  zeroth = Div (nothing, two)  less = Sub (two, seven)  negative = Div (less, two)
}
"""


@pytest.mark.parametrize(
    ("name", "vector"),
    [
        ("y", (3,)),
        ("fraction", None),
        ("whole", (3,)),
        ("none", None),
        ("zeroth", (0,)),
        ("negative", None),
    ],
)
def test_numbers_are_divided_as_integers_or_without_a_rest(
    name: str, vector: SymbolicShape | None
) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {_QUOTIENTS}')
    view = infer(ir.from_proto(model))
    assert SymbolicShapes(view).vector(view.by_ref()[name]) == vector


def test_sizes_are_followed_through_thousands_of_operators() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    nodes += [helper.make_node("Identity", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("v3000", TensorProto.INT64, [2])
    model = helper.make_model(helper.make_graph(nodes, "long", [x], [y]))
    view = ModelInfo(ir.from_proto(model))
    assert SymbolicShapes(view).vector(view.by_ref()["v3000"]) == ("n", 4)


@pytest.mark.parametrize(("to", "told"), [(7, ("n",)), (6, ("n",)), (3, None), (10, None)])
def test_a_size_in_few_bits_has_no_name(to: int, told: SymbolicShape | None) -> None:
    """As int8 or float16 it may be another number."""
    graph = f"""
    g (float[n] x) => (float[A] y) {{
      size = Shape (x) few = Cast <to = {to}> (size) many = Cast <to = 7> (few) y = Neg (x) }}
    """
    model = parser.parse_model(f'<ir_version: 7, opset_import: ["" : 13]> {graph}')
    view = infer(ir.from_proto(model))
    values, symbolic = view.by_ref(), SymbolicShapes(view)
    assert symbolic.vector(values["few"]) == told
    assert symbolic.vector(values["many"]) == told


def test_the_name_of_a_product_stands_for_a_size() -> None:
    """-n is -1 where n is 1, as a size never is."""
    graph = _CHOICE.replace(
        "target = Concat <axis = 0> (size, minus)",
        "both = Concat <axis = 0> (size, minus) turned = ReduceProd <axes = [0]> (both) "
        "target = Concat <axis = 0> (turned, minus)",
    )
    view = infer(
        ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {graph}'))
    )
    assert SymbolicShapes(view).vector(view.by_ref()["sizes"]) is None


_LARGEST = """
g (float[n, m, 2] x, float[n, m, 2] y) => (float[A, B] z)
<int64[2] first = {0, 1}, int64[2] last = {0, 2}, int64[2] numbers = {3, 1}> {
  shape = Shape (x)  twin = Shape (y)  a = Gather <axis = 0> (shape, first)
  b = Gather <axis = 0> (shape, last)  same = Max (a, a)
  counted = Max (numbers, numbers, numbers)  other = Max (a, b)  mixed = Max (a, numbers)
  longer = Max (a, shape)  z = ConstantOfShape (same)
}
"""


def test_the_larger_of_equal_sizes_is_that_size() -> None:
    """What tf2onnx writes for the batch axes of an einsum, which may be 1 in one operand."""
    view = infer(
        ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {_LARGEST}'))
    )
    values, symbolic = view.by_ref(), SymbolicShapes(view)
    assert symbolic.vector(values["same"]) == ("n", "m")
    assert symbolic.dims(values["z"]) == ("n", "m")
    assert symbolic.vector(values["counted"]) == (3, 1)
    assert [symbolic.vector(values[name]) for name in ("other", "mixed", "longer")] == [None] * 3


def test_a_size_that_has_its_own_name_is_found_once_operands_have_sizes() -> None:
    """It got the name while an operator before it was whole, which no rule follows."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4, 2] x) => (float[m, 4, 2] y)
        <int64[3] sizes = {-1, 4, 2}> { r = Reshape (x, sizes)  s = Add (r, x)  y = Neg (s) }"""
    )
    told = helper.make_tensor_value_info("s", TensorProto.FLOAT, ["s@0", 4, 2])
    proto.graph.value_info.append(told)
    view = infer(ir.from_proto(proto))
    assert view.shape(view.by_ref()["s"]) == ("n", 4, 2)
