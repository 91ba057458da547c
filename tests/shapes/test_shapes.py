"""Shapes of all values, against a run of the model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnxfold.graph import ModelInfo, Shape
from onnxfold.shapes import infer
from tests.builders import chain_model
from tests.graphs import Array, model, untyped
from tests.soundness.float64 import evaluate
from tests.soundness.random_graphs import B, random_graph


def test_every_shape_is_the_one_that_a_run_has() -> None:
    known = total = 0
    for seed in range(24):
        graph = random_graph(seed)
        view = infer(ir.from_proto(graph.model))
        values = [v for node in view.model.graph for v in node.outputs if v.name]
        whole = onnx.ModelProto()
        whole.CopyFrom(graph.model)
        del whole.graph.output[:]
        whole.graph.output.extend(helper.make_empty_tensor_value_info(str(v.name)) for v in values)
        arrays = evaluate(whole, graph.feeds, graph.operators)
        total += len(values)
        for value, array in zip(values, arrays, strict=True):
            shape = view.shape(value)
            if shape is None:
                continue
            known += 1
            sizes = [B if dim == "batch" else dim for dim in shape]
            assert len(sizes) == array.ndim, value.name
            for size, true in zip(sizes, array.shape, strict=True):
                assert not isinstance(size, int) or size == true, value.name
    assert known > 0.7 * total  # some graphs hide all of theirs on purpose


def _view(body: str, opset: int = 17, given: str = "", **weights: Array) -> ModelInfo:
    proto = model(body, f"float[batch,2,1,1] x{given}", "float y", weights, opset)
    return infer(ir.from_proto(untyped(proto)))


def _shape(view: ModelInfo, name: str = "y") -> Shape | None:
    return view.shape(view.by_ref()[name])


@pytest.mark.parametrize("axes", [[2, 3], [3, 2]])
def test_squeeze_with_unsorted_axes_has_the_right_shape(axes: list[int]) -> None:
    assert _shape(_view(f"y = Squeeze<axes={axes}>(x)", 9)) == ("batch", 2)


@pytest.mark.parametrize("opset", [7, 10, 11])
@pytest.mark.parametrize("axes", [[-1], [0, -2], [-1, 1], [3, 0]])
def test_axes_from_the_end_and_in_any_order_count_below_opset_11_too(
    axes: list[int], opset: int
) -> None:
    expected = list(np.expand_dims(np.ones((3, 2, 1, 1)), tuple(axes)).shape)
    sizes = _shape(_view(f"y = Unsqueeze<axes={axes}>(x)", opset))
    assert sizes is not None
    assert [3 if size == "batch" else size for size in sizes] == expected
    assert _shape(_view("y = Squeeze<axes=[-1]>(x)", opset)) == ("batch", 2, 1)


def test_a_large_weight_is_left_out_of_the_inference_but_has_its_shape() -> None:
    view = _view("y = MatMul(x, W)", W=np.zeros((1, 5000), np.float32))
    assert _shape(view, "W") == (1, 5000)
    assert _shape(view) == ("batch", 2, 1, 5000)


def test_a_large_constant_in_a_node_is_its_shape_and_in_an_unknown_operator_it_is_not() -> None:
    large = f"float[1,5000] {{{', '.join(['0'] * 5000)}}}"
    view = _view(
        f"W = Constant<value = {large}>() product = MatMul(x, W) "
        f"odd = com.microsoft.Whatever<value = {large}>(product) y = Neg(odd)"
    )
    shapes = [_shape(view, name) for name in ("W", "product", "odd", "y")]
    assert shapes == [(1, 5000), ("batch", 2, 1, 5000), None, None]


def test_a_contrib_operator_that_keeps_shapes_keeps_them() -> None:
    assert _shape(_view("y = com.microsoft.FastGelu(x)")) == ("batch", 2, 1, 1)


def test_an_unknown_operator_has_no_shape() -> None:
    view = _view("y = com.microsoft.Whatever(x)")
    assert _shape(view) is None
    assert view.rank(view.by_ref()["y"]) is None
    assert view.dim(view.by_ref()["y"], 0) is None


def test_nothing_follows_from_a_default_that_callers_may_override() -> None:
    """A Reshape to such a shape has unknown sizes; a weight has the shape that is declared."""
    body = "r = Reshape(x, target) y = MatMul(r, W)"
    weights = {"target": np.array([-1, 2]), "W": np.ones((2, 3), np.float32)}
    fixed = _view(body, **weights)
    assert (_shape(fixed, "r") or ())[1:] == (2,)
    assert _shape(fixed, "W") == (2, 3)
    view = _view(body, given=", int64[2] target, float[k,3] W", **weights)
    rows = _shape(view, "r")
    assert rows is not None
    assert len(rows) == 2
    assert not any(isinstance(size, int) for size in rows)
    assert _shape(view, "W") == ("k", 3)


def test_a_weight_has_the_type_that_it_has_whatever_is_declared() -> None:
    proto = chain_model()
    gamma = next(node.input[1] for node in proto.graph.node if node.op_type == "LayerNormalization")
    proto.graph.value_info.append(helper.make_tensor_value_info(gamma, TensorProto.STRING, None))
    view = infer(ir.from_proto(proto))
    assert {value.dtype for value in view.model.graph.initializers.values()} <= {
        ir.DataType.FLOAT,
        ir.DataType.INT64,
    }
