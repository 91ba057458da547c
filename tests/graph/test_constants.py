"""What counts as constant, and constant expressions of every opset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import in_memory, whole_node
from onnxfold.shapes import infer
from onnxfold.shapes.symbolic import SymbolicShapes
from tests.graphs import model, untyped

Array = npt.NDArray[Any]


def _view(
    body: str, weights: dict[str, Array] | None = None, opset: int = 17, listed: str = ""
) -> ModelInfo:
    last = re.findall(r"(\w+) = ", body)[-1]
    proto = model(body, f"float[batch,4] x{listed}", f"float {last}", weights, opset)
    return infer(ir.from_proto(untyped(proto)))


def _array(view: ModelInfo, name: str) -> Array | None:
    return view.array(view.by_ref()[name])


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 17, 18, 21])
def test_constant_expressions_are_read_in_the_opset_of_the_model(opset: int) -> None:
    """Unsqueeze, Squeeze and the reductions take axes as attributes or as an input."""
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    axes, more = ("", ", axes") if opset >= 13 else ("<axes=[0]>", "")
    mean = "<keepdims=0>(s, axes)" if opset >= 18 else "<keepdims=0, axes=[0]>(s)"
    body = f"u = Unsqueeze{axes}(w{more}) s = Squeeze{axes}(u{more}) m = ReduceMean{mean}"
    view = _view(f"{body} y = Add(x, m)", {"w": w, "axes": np.array([0])}, opset)
    np.testing.assert_array_equal(_array(view, "u"), w[None])
    np.testing.assert_array_equal(_array(view, "m"), w.mean(axis=0))
    assert _array(view, "y") is None


def test_every_output_of_a_constant_split_is_its_own_part() -> None:
    w = np.arange(4, dtype=np.float32)
    view = _view("a, b = Split<axis=0>(w)", {"w": w})
    np.testing.assert_array_equal(_array(view, "b"), w[2:])


@pytest.mark.parametrize(
    ("start", "expected"), [(-1, [3, 2, 1]), (-3, [1]), (-4, None), (2, [3, 2, 1])]
)
def test_a_slice_backwards_from_before_the_first_element_is_not_evaluated(
    start: int, expected: list[int] | None
) -> None:
    """It begins with the first element in ONNX, with none in onnx's evaluator."""
    bounds = {"w": [1, 2, 3], "start": [start], "end": [-9], "axis": [0], "step": [-1], "one": [1]}
    for axis in ("axis", ""):
        body = (
            f"y = Slice(w, start, end, {axis}, step) sizes = Shape(x) "
            f"three = Concat<axis=0>(sizes, one) z = Slice(three, start, end, {axis}, step)"
        )
        view = _view(body, {name: np.array(numbers) for name, numbers in bounds.items()})
        array, values = _array(view, "y"), view.by_ref()
        assert (None if array is None else array.tolist()) == expected
        vector = SymbolicShapes(view).vector(values["z"])
        of_sizes = (
            None if expected is None else tuple({1: "batch", 2: 4, 3: 1}[n] for n in expected)
        )
        assert vector == of_sizes


def test_the_shape_of_an_input_is_constant_where_it_is_static() -> None:
    view = _view("all = Shape(x) last = Shape<start=1>(x)")
    assert _array(view, "all") is None
    assert view.integers(view.by_ref()["last"]) == (4,)


def test_a_default_that_callers_may_override_is_no_constant() -> None:
    w, body = np.ones(4, dtype=np.float32), "y = Add(x, w)"
    assert _array(_view(body, {"w": w}), "w") is not None
    assert _array(_view(body, {"w": w}, listed=", float[4] w"), "w") is None


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("value_float = 2.5", np.float32(2.5)),
        ("value_int = 3", np.int64(3)),
        ("value_ints = [1, 2]", np.array([1, 2])),
        ("value_floats = [0.5]", np.array([0.5], np.float32)),
        ("value = double[2] {1.0, 2.0}", np.array([1.0, 2.0])),
    ],
)
def test_constant_nodes_of_every_form_are_read(form: str, expected: Array) -> None:
    array = _array(_view(f"c = Constant<{form}>()"), "c")
    assert array is not None
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


def test_large_tensors_are_not_read() -> None:
    large = np.zeros((1 << 9, 1 << 9), dtype=np.float32)
    view = _view("y = Neg(w)", {"w": large})
    assert _array(view, "w") is None
    assert _array(view, "y") is None
    assert view.tensor(view.by_ref()["w"]) is not None


def test_tensors_of_as_many_elements_as_the_limit_are_read() -> None:
    for size, read in ((1 << 16, True), ((1 << 16) + 1, False)):
        view = _view("y = Neg(w)", {"w": np.ones(size, np.float32)})
        assert [_array(view, name) is not None for name in "wy"] == [read] * 2


@pytest.mark.parametrize(
    ("op_type", "operands", "expected"),
    [
        ("ConstantOfShape", [[2, 2]], np.zeros((2, 2), np.float32)),
        ("ConstantOfShape", [[1 << 9, 1 << 9]], None),
        ("Expand", [[7], [2, 1]], np.array([[7], [7]])),
        ("Expand", [[7], [1 << 9, 1 << 9]], None),
        ("Tile", [[7, 8], [2]], np.array([7, 8, 7, 8])),
        ("Tile", [[7] * 512, [512]], None),
        ("Range", [1, 7, 2], np.array([1, 3, 5])),
        ("Range", [0, 1 << 17, 1], None),
        ("Range", [0, 1, 0], None),
        ("Add", [[1, 2], [1 << 9, 1 << 9]], np.array([513, 514])),
    ],
)
def test_small_results_are_evaluated_and_large_ones_are_not(
    op_type: str, operands: list[Any], expected: Array | None
) -> None:
    weights = {f"w{number}": np.array(operand) for number, operand in enumerate(operands)}
    array = _array(_view(f"y = {op_type}({', '.join(weights)})", weights), "y")
    if expected is None:
        assert array is None
    else:
        assert array is not None
        np.testing.assert_array_equal(array, expected)


def test_axes_of_an_unsqueeze_are_those_of_the_result_in_any_order() -> None:
    w = np.ones((2, 3), np.float32)
    for axes, shape in (([-1, 1], (2, 1, 3, 1)), ([1, 0], (1, 1, 2, 3)), ([3, 1], (2, 1, 3, 1))):
        array = _array(_view(f"y = Unsqueeze<axes={axes}>(w)", {"w": w}, opset=11), "y")
        assert array is not None
        assert array.shape == shape


def test_floats_are_wide_where_that_is_asked_for_and_integers_stay() -> None:
    third = np.array([1 / 3], np.float32)
    weights = {"w": third, "v": np.array([1], np.float16), "n": np.array([3])}
    view = _view("half = Cast<to=10>(w) sum = Add(half, v) count = Add(n, n)", weights)
    wide, count = (view.wide_array(view.by_ref()[name]) for name in ("sum", "count"))
    assert wide is not None
    assert count is not None
    assert wide.dtype == np.float64
    assert wide[0] == 1 + float(third[0])
    assert (count.dtype, count[0]) == (np.int64, 6)
    assert _array(view, "sum") == np.float16(1) + np.float16(third[0])


def test_sizes_of_values_are_told_by_axes_that_they_have() -> None:
    view = _view("y = Neg(x)")
    x = view.by_ref()["x"]
    sizes = [view.dim(x, axis) for axis in range(-3, 3)]
    assert sizes == [None, "batch", 4, "batch", 4, None]
    assert view.dim(None, 0) is None


def test_random_numbers_are_not_constant() -> None:
    assert _array(_view("r = RandomNormal<shape=[4]>()"), "r") is None


def test_what_onnx_reads_of_a_node_is_not_in_another_file(tmp_path: Path) -> None:
    """Nor does what is in memory already take memory again."""
    numbers = np.array([3, 4], np.int64)
    (tmp_path / "data").write_bytes(b"head" + numbers.tobytes())
    apart = ir.ExternalTensor(
        "data", 4, 16, ir.DataType.INT64, shape=ir.Shape([2]), name="c", base_dir=tmp_path
    )
    lazy = ir.LazyTensor(lambda: apart, dtype=apart.dtype, shape=ir.Shape([2]), name="c")
    held = ir.Tensor(numbers, name="c")
    assert in_memory(held) is held
    for tensor in (apart, lazy):
        read = in_memory(tensor)
        assert (type(read), read.dtype, read.name) == (ir.Tensor, ir.DataType.INT64, "c")
        node = whole_node(ir.node("Constant", [], {"value": tensor}))
        assert numpy_helper.to_array(node.attribute[0].t).tolist() == [3, 4]
