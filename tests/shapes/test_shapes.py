"""Shapes of all values, against a run of the model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.shapes import infer
from tests.builders import chain_model
from tests.operators.sample import Array
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


def _model(nodes: list[onnx.NodeProto], opset: int, weights: dict[str, Array]) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 1, 1])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


@pytest.mark.parametrize("axes", [[2, 3], [3, 2]])
def test_squeeze_with_unsorted_axes_has_the_right_shape(axes: list[int]) -> None:
    view = infer(_model([helper.make_node("Squeeze", ["x"], ["y"], axes=axes)], 9, {}))
    assert view.shape(view.by_ref()["y"]) == ("batch", 2)


@pytest.mark.parametrize("opset", [7, 10, 11])
@pytest.mark.parametrize("axes", [[-1], [0, -2], [-1, 1], [3, 0]])
def test_axes_from_the_end_and_in_any_order_count_below_opset_11_too(
    axes: list[int], opset: int
) -> None:
    view = infer(_model([helper.make_node("Unsqueeze", ["x"], ["y"], axes=axes)], opset, {}))
    expected = list(np.expand_dims(np.ones((3, 2, 1, 1)), tuple(axes)).shape)
    sizes = view.shape(view.by_ref()["y"])
    assert sizes is not None
    assert [3 if size == "batch" else size for size in sizes] == expected
    back = [helper.make_node("Squeeze", ["x"], ["y"], axes=[-1])]
    view = infer(_model(back, opset, {}))
    assert view.shape(view.by_ref()["y"]) == ("batch", 2, 1)


def test_a_large_weight_is_left_out_of_the_inference_but_has_its_shape() -> None:
    node = helper.make_node("MatMul", ["x", "W"], ["y"])
    view = infer(_model([node], 17, {"W": np.zeros((1, 5000), np.float32)}))
    assert view.shape(view.by_ref()["W"]) == (1, 5000)
    assert view.shape(view.by_ref()["y"]) == ("batch", 2, 1, 5000)


def test_a_large_constant_in_a_node_is_its_shape_and_in_an_unknown_operator_it_is_not() -> None:
    large = numpy_helper.from_array(np.zeros((1, 5000), np.float32))
    nodes = [
        helper.make_node("Constant", [], ["W"], value=large),
        helper.make_node("MatMul", ["x", "W"], ["product"]),
        helper.make_node("Whatever", ["product"], ["odd"], domain="com.microsoft", value=large),
        helper.make_node("Neg", ["odd"], ["y"]),
    ]
    view = infer(_model(nodes, 17, {}))
    shapes = [view.shape(view.by_ref()[name]) for name in ("W", "product", "odd", "y")]
    assert shapes == [(1, 5000), ("batch", 2, 1, 5000), None, None]


def test_a_contrib_operator_that_keeps_shapes_keeps_them() -> None:
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    view = infer(_model([node], 17, {}))
    assert view.shape(view.by_ref()["y"]) == ("batch", 2, 1, 1)


def test_an_unknown_operator_has_no_shape() -> None:
    node = helper.make_node("Whatever", ["x"], ["y"], domain="com.microsoft")
    view = infer(_model([node], 17, {}))
    assert view.shape(view.by_ref()["y"]) is None
    assert view.rank(view.by_ref()["y"]) is None
    assert view.dim(view.by_ref()["y"], 0) is None


def test_nothing_follows_from_a_default_that_callers_may_override() -> None:
    """A Reshape to such a shape has unknown sizes; a weight has the shape that is declared."""
    nodes = [
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("MatMul", ["r", "W"], ["y"]),
    ]
    weights: dict[str, Array] = {"target": np.array([-1, 2]), "W": np.ones((2, 3), np.float32)}
    model = _model(nodes, 17, weights)
    fixed = infer(model.clone())
    assert (fixed.shape(fixed.by_ref()["r"]) or ())[1:] == (2,)
    assert fixed.shape(fixed.by_ref()["W"]) == (2, 3)
    proto = ir.to_proto(model)
    for name, kind, dims in (
        ("target", TensorProto.INT64, [2]),
        ("W", TensorProto.FLOAT, ["k", 3]),
    ):
        proto.graph.input.append(helper.make_tensor_value_info(name, kind, dims))
    view = infer(ir.from_proto(proto))
    values = view.by_ref()
    rows = view.shape(values["r"])
    assert rows is not None
    assert len(rows) == 2
    assert not any(isinstance(size, int) for size in rows)
    assert view.shape(values["W"]) == ("k", 3)


def test_a_weight_has_the_type_that_it_has_whatever_is_declared() -> None:
    proto = chain_model()
    gamma = next(node.input[1] for node in proto.graph.node if node.op_type == "LayerNormalization")
    proto.graph.value_info.append(helper.make_tensor_value_info(gamma, TensorProto.STRING, None))
    view = infer(ir.from_proto(proto))
    assert {value.dtype for value in view.model.graph.initializers.values()} <= {
        ir.DataType.FLOAT,
        ir.DataType.INT64,
    }
