"""Symbolic shapes and vectors, against runs with numbers in the place of the symbols."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from onnxfold.graph import ModelInfo
from onnxfold.shapes import infer
from onnxfold.shapes.named_sizes import SymbolicShape, fits, same_elements
from onnxfold.shapes.symbolic import SymbolicShapes
from tests.operators.sample import Array

_SETTINGS = settings(max_examples=300, deadline=None, derandomize=True, database=None)
_SYMBOLS = {"n": (3, 1, 2), "m": (5, 2, 1)}
_INPUTS: dict[str, SymbolicShape] = {"x": ("n", "m", 4), "z": ("m", 4), "w": (1, 4), "t": (4, 1)}
_RUNS = [dict(zip(_SYMBOLS, sizes, strict=True)) for sizes in zip(*_SYMBOLS.values(), strict=True)]

_dims = st.lists(st.sampled_from((1, 2, 3, "n", "m")), max_size=3).map(tuple)


def _sized(shape: SymbolicShape, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)


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
        (_sized(small, {"n": n, "m": m}), _sized(large, {"n": n, "m": m}))
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
        (_sized(a, {"n": n, "m": m}), _sized(b, {"n": n, "m": m}))
        for n in range(1, 10)
        for m in range(1, 10)
    ]
    possible = [pair for pair in pairs if prod(pair[0]) == prod(pair[1])]
    alike = len(a) == len(b) and all(one == other for one, other in possible)
    assert not same_elements(a, b) or alike
    if alike and possible and sum(x != y for x, y in zip(a, b, strict=True)) <= 1:
        assert same_elements(a, b)


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


_CHOICE = """
g (float[n, 4] x, float[1, 4] row) => (float[A, B] y)
<int64[1] first = {0}, int64[1] minus = {-1}, int64[2] none = {-1, -1}, int64[2] ones = {1, 1}> {
  shape = Shape (x)
  size = Gather <axis = 0> (shape, first)
  target = Concat <axis = 0> (size, minus)
  kept = Equal (target, none)
  sizes = Where (kept, ones, target)
  y = Expand (row, sizes)
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
  shape = Shape (x)
  size = Gather <axis = 0> (shape, one)
  length = Squeeze (size)
  counted = Range (first, length, step)
  cut = Slice (table, zero, size, one)
  kept = Slice (row, zero, size, one)
  later = Slice (table, one, size, one)
  every = Slice (table, zero, size, one, two)
  steps = Add (size, one)
  odd = Slice (table, zero, size, one, steps)
  nothing = Slice (empty, zero, size, one)
  far = Sub (zero, nine)
  turned = Slice (table, far, nine, one, minus)
  y = Add (x, cut)
  single = Add (x, kept)
  behind = Add (x, later)
  other = Add (z, cut)
  thinned = Add (x, every)
  spread = Add (x, odd)
  gone = Add (x, nothing)
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


_LAYERS = """
g (float[n, 1, m, 4] x, float[2, 4, k] y, float[4, m] a, float[k, 4] b, float[k, m] p,
   float[1, m] row) => (float[A] z) {
  z = MatMul (x, y)
  turned = Gemm <transA = 1, transB = 1> (a, b)
  same = MatMul (a, x)
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
  odd = com.microsoft.Whatever (x)
  y = ReduceMean (x, some)
  less = ReduceMean <keepdims = 0> (x, some)
  every = ReduceMean <keepdims = 0> (x, none)
  same = ReduceMean <noop_with_empty_axes = 1> (x, none)
  unknown = ReduceMean (x, open)
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
          odd = com.microsoft.Whatever (x)
          parts = SequenceConstruct ({element})
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


_QUOTIENTS = """
g (float[n, 7, 6] x) => (int64[1] y)
<int64[1] one = {1}, int64[1] two = {2}, int64[1] zero = {0}> {
  shape = Shape (x)
  sizes = Identity (shape)
  seven = Gather (sizes, one)
  six = Gather (sizes, two)
  odd = Cast <to = 1> (seven)
  even = Cast <to = 1> (six)
  by = Cast <to = 1> (two)
  y = Div (seven, two)
  fraction = Div (odd, by)
  whole = Div (even, by)
  none = Div (seven, zero)
  nothing = Sub (seven, seven)
  zeroth = Div (nothing, two)
  less = Sub (two, seven)
  negative = Div (less, two)
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
  shape = Shape (x)
  twin = Shape (y)
  a = Gather <axis = 0> (shape, first)
  b = Gather <axis = 0> (shape, last)
  same = Max (a, a)
  counted = Max (numbers, numbers, numbers)
  other = Max (a, b)
  mixed = Max (a, numbers)
  longer = Max (a, shape)
  z = ConstantOfShape (same)
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


class _Program:
    """Operators on shapes and sizes, put together at random; every one runs for all sizes."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self._rng, self._opset = rng, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.runs: list[dict[str, Array]] = [
            {name: np.ones(_sized(shape, sizes), np.float32) for name, shape in _INPUTS.items()}
            for sizes in _RUNS
        ]
        self._tensors, self._vectors = list(_INPUTS), [self._constant([1])]
        for _ in range(14):
            make = rng.choice((*_OF_VECTORS, *_OF_TENSORS))
            if self._ran(make(self)):
                (self._vectors if make in _OF_VECTORS else self._tensors).append(self._last)
            if rng.random() < 0.2 and self._ran(self._compare()) and self._ran(self._choose()):
                self._vectors.append(self._last)

    @property
    def _last(self) -> str:
        return self.nodes[-1].output[0]

    def model(self) -> ir.Model:
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in _INPUTS.items()
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        outputs = [helper.make_empty_tensor_value_info(self._tensors[-1])]
        graph = helper.make_graph(self.nodes, "program", inputs, outputs, weights)
        imports = [helper.make_opsetid("", self._opset)]
        return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))

    def _constant(self, numbers: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(numbers, np.int64)
        return name

    def _number(self, low: int = -2, high: int = 4) -> int:
        return self._rng.randint(low, high)

    def _vector(self, count: int | None = None) -> str:
        """Return a vector; with a count, one of so many sizes."""
        fit = [v for v in self._vectors if count is None or self._in_first_run(v).size == count]
        return self._rng.choice(fit or [self._constant([1] * (count or 1))])

    def _in_first_run(self, name: str) -> Array:
        return self.constants[name] if name in self.constants else self.runs[0][name]

    def _tensor(self) -> str:
        return self._rng.choice(self._tensors)

    def _node(self, op_type: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs, [f"v{len(self.nodes)}"], **attributes)

    def _ran(self, node: onnx.NodeProto) -> bool:
        operands = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(node.input)]
        results = [helper.make_empty_tensor_value_info(node.output[0])]
        graph = helper.make_graph([node], "step", operands, results)
        imports = [helper.make_opsetid("", self._opset)]
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
        if node.op_type == "Slice" and self._begins_before(node):
            return False  # with nothing in numpy, with the first element in ONNX
        if node.op_type == "Reshape" and self._in_first_run(node.input[1]).min(initial=0) < -1:
            return False  # which numpy takes, unlike ONNX
        try:
            given = [{**run, **self.constants} for run in self.runs]
            found = [
                evaluator.run(None, {name: run[name] for name in node.input})[0] for run in given
            ]
        except (RuntimeError, RuntimeWarning, ValueError, IndexError, TypeError):
            return False
        if any(array.size > 5000 for array in found) or any(array.ndim > 5 for array in found):
            return False
        for run, array in zip(self.runs, found, strict=True):
            run[node.output[0]] = np.asarray(array)
        self.nodes.append(node)
        return True

    def _begins_before(self, node: onnx.NodeProto) -> bool:
        if len(node.input) < 5 or self.constants[node.input[4]][0] > 0:
            return False
        data, start = self._in_first_run(node.input[0]), self.constants[node.input[1]][0]
        return bool(start < -data.size)

    def shape(self) -> onnx.NodeProto:
        bounds: dict[str, int] = {}
        if self._opset >= 15 and self._rng.random() < 0.5:
            bounds = {"start": self._number(-2, 1), "end": self._number(-1, 3)}
        return self._node("Shape", self._tensor(), **bounds)

    def size(self) -> onnx.NodeProto:
        return self._node("Size", self._tensor())

    def gather(self) -> onnx.NodeProto:
        places = [self._number(-2, 2) for _ in range(self._rng.randint(1, 2))]
        index = self._constant(places if self._rng.random() < 0.5 else places[0])
        return self._node("Gather", self._vector(), index)

    def slice(self) -> onnx.NodeProto:
        start, end, step = self._number(), self._number(), self._rng.choice((1, 1, 2, -1))
        if self._opset < 10:
            return self._node("Slice", self._vector(), starts=[start], ends=[end])
        bounds = [[start], [end], [0], [step]][: self._rng.choice((2, 3, 4, 4))]
        return self._node("Slice", self._vector(), *map(self._constant, bounds))

    def concat(self) -> onnx.NodeProto:
        parts = [self._vector() for _ in range(self._rng.randint(1, 2))]
        if self._rng.random() < 0.6:
            parts.append(self._constant([self._number(-1, 4)]))
        return self._node("Concat", *parts, axis=0)

    def arithmetic(self) -> onnx.NodeProto:
        other = self._constant([self._number(-1, 4)])
        operands = [self._vector(), self._vector() if self._rng.random() < 0.4 else other]
        self._rng.shuffle(operands)
        return self._node(self._rng.choice(("Add", "Sub", "Mul", "Div")), *operands)

    def _compare(self) -> onnx.NodeProto:
        vector = self._vector()
        count = self._in_first_run(vector).size
        other = self._vector(count) if self._rng.random() < 0.4 else self._constant([-1] * count)
        return self._node("Equal", *self._rng.sample((vector, other), 2))

    def _choose(self) -> onnx.NodeProto:
        """Choose by what was compared last: mostly of one of the two, as exporters do."""
        compared = self.nodes[-1]
        count = self._in_first_run(compared.output[0]).size
        either = [compared.input[0], self._vector(count)]
        return self._node("Where", compared.output[0], *self._rng.sample(either, 2))

    def product(self) -> onnx.NodeProto:
        return self._node("ReduceProd", self._vector(), keepdims=1)

    def largest(self) -> onnx.NodeProto:
        vector = self._vector()
        return self._node("Max", vector, self._vector(self._in_first_run(vector).size))

    def reshape(self) -> onnx.NodeProto:
        return self._node("Reshape", self._tensor(), self._vector())

    def flatten(self) -> onnx.NodeProto:
        target = self._rng.choice(([-1], [0, -1], [-1, 4], [0, 0, -1], [-1, 2, 2], [0, 0, 2, 2]))
        return self._node("Reshape", self._tensor(), self._constant(target))

    def expand(self) -> onnx.NodeProto:
        return self._node("Expand", self._tensor(), self._vector())

    def fill(self) -> onnx.NodeProto:
        return self._node("ConstantOfShape", self._vector())

    def range(self) -> onnx.NodeProto:
        """Count to a size, mostly from zero and in steps of one, as exporters count positions."""
        sizes = [v for v in self._vectors if self._in_first_run(v).ndim == 0]
        start, step = self._rng.choice((0, 0, 0, 1)), self._rng.choice((1, 1, 1, 2))
        limit = self._rng.choice(sizes or [self._constant(3)])
        return self._node("Range", self._constant(start), limit, self._constant(step))

    def cut(self) -> onnx.NodeProto:
        """Cut a tensor up to a size, as exporters cut tables of positions, or otherwise."""
        tensor = self._rng.choice(("t", self._tensor()))
        sizes = [v for v in self._vectors if self._in_first_run(v).shape == (1,)]
        size = self._rng.choice(sizes[1:] or sizes)
        rank = self.runs[0][tensor].ndim
        if self._opset < 10 or not rank:
            return self._node("Identity", tensor)
        start = self._constant([self._rng.choice((0, 0, 0, 1, -1))])
        places = [start, size, self._constant([self._number(-rank, rank - 1)])]
        steps = (
            [self._constant([self._rng.choice((1, 1, 2, -1))])] if self._rng.random() < 0.5 else []
        )
        return self._node("Slice", tensor, *places, *steps)

    def tile(self) -> onnx.NodeProto:
        tensor = self._tensor()
        return self._node("Tile", tensor, self._vector(self.runs[0][tensor].ndim))

    def add(self) -> onnx.NodeProto:
        return self._node("Add", self._tensor(), self._tensor())

    def multiply(self) -> onnx.NodeProto:
        return self._node("MatMul", self._tensor(), self._tensor())

    def transpose(self) -> onnx.NodeProto:
        tensor = self._tensor()
        order = list(range(self.runs[0][tensor].ndim))
        self._rng.shuffle(order)
        given = {"perm": order} if order and self._rng.random() < 0.7 else {}
        return self._node("Transpose", tensor, **given)

    def unsqueeze(self) -> onnx.NodeProto:
        count = self._rng.randint(1, 2)
        if self._opset < 13:
            # onnx's evaluator reads other axes one after the other; test_shapes.py tries them.
            return self._node(
                "Unsqueeze", self._tensor(), axes=sorted(self._rng.sample(range(3), count))
            )
        axes = self._rng.sample(range(-2, 2), count)
        return self._node("Unsqueeze", self._tensor(), self._constant(axes))

    def reduce(self) -> onnx.NodeProto:
        axes = [] if self._rng.random() < 0.3 else [self._number(-2, 1)]
        keepdims = self._rng.randint(0, 1)
        return self._node(
            "ReduceMean", self._tensor(), **({"axes": axes} if axes else {}), keepdims=keepdims
        )


_Step = Callable[[_Program], onnx.NodeProto]
_OF_VECTORS: tuple[_Step, ...] = (
    _Program.shape,
    _Program.size,
    _Program.gather,
    _Program.slice,
    _Program.concat,
    _Program.arithmetic,
    _Program.product,
    _Program.largest,
)
_OF_TENSORS: tuple[_Step, ...] = (
    _Program.reshape,
    _Program.flatten,
    _Program.expand,
    _Program.fill,
    _Program.range,
    _Program.cut,
    _Program.tile,
    _Program.add,
    _Program.multiply,
    _Program.transpose,
    _Program.unsqueeze,
    _Program.reduce,
)


def _assert_told(told: SymbolicShape, true: list[int], names: dict[str, int]) -> int:
    """Hold sizes against numbers, and each name against its first number; count what is told."""
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
        program = _Program(random.Random(100 * opset + seed), opset)  # noqa: S311  # no secret
        view = infer(program.model())
        symbolic, values = SymbolicShapes(view), view.by_ref()
        for sizes, run in zip(_RUNS, program.runs, strict=True):
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
