"""What a deferred norm leaves becomes calls of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.operators.functions import DOMAIN
from onnxfold.passes.lower.row_scales import reduces_rows
from tests.sessions import outputs

C = 16
node = helper.make_node
SCALE = [
    node("Mul", ["x", "x"], ["square"]),
    node("ReduceMean", ["square", "last"], ["mean"], keepdims=1),
    node("Add", ["mean", "epsilon"], ["inverse_square"]),
    node("Sqrt", ["inverse_square"], ["inverse"]),
    node("Reciprocal", ["inverse"], ["s"]),
]
LAYER = [node("MatMul", ["x", "W"], ["u"]), node("Mul", ["u", "s"], ["h"])]
ROW_EPSILON = [
    node("MatMul", ["x", "W"], ["u"]),
    node("Mul", ["inverse_square", "epsilon"], ["e"]),
    node("Mul", ["u", "u"], ["square_of_u"]),
    node("ReduceMean", ["square_of_u", "last"], ["mean_of_u"], keepdims=1),
    node("Add", ["mean_of_u", "e"], ["shifted"]),
    node("Sqrt", ["shifted"], ["root"]),
    node("Reciprocal", ["root"], ["inverse_root"]),
    node("Mul", ["inverse_root", "u"], ["normed"]),
]


def model_of(nodes: Sequence[onnx.NodeProto], *outputs: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "W": rng.standard_normal((C, C)).astype(np.float32),
        "b": rng.standard_normal(C).astype(np.float32),
        "gamma": 1 + rng.random(C).astype(np.float32),
        "epsilon": np.float32(2.0**-17),
        "wide": np.float32(2.0**-10),
        "last": np.array([-1], np.int64),
    }
    made = {name for each in nodes for name in each.output}
    read = {name for each in nodes for name in each.input} - made
    graph = helper.make_graph(
        list(nodes),
        "deferred",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, C])
            for name in ("x", "r")
            if name in read
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def outputs_of(model: onnx.ModelProto, *, kernels: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    inputs = {
        each.name: rng.standard_normal((2, 3, C)).astype(np.float32) for each in model.graph.input
    }
    return outputs(model, inputs, kernels=kernels)


@pytest.mark.parametrize(
    ("nodes", "outputs", "calls"),
    [
        ([*SCALE, *LAYER], ("h",), ["RowScale"]),
        (
            [*SCALE, *LAYER, node("Add", ["h", "b"], ["z"]), node("Relu", ["z"], ["y"])],
            ("y",),
            ["RowScale", "ScaleRowsBiasRelu"],
        ),
        ([*SCALE, *LAYER, node("Gelu", ["h"], ["y"])], ("y",), ["RowScale", "ScaleRowsGelu"]),
        (
            [
                *SCALE,
                *LAYER,
                node("Sigmoid", ["h"], ["g"]),
                node("Mul", ["h", "g"], ["y"]),
            ],
            ("y",),
            ["RowScale", "ScaleRowsSilu"],
        ),
        (
            [node("Add", ["r", "r"], ["x"]), *SCALE, *LAYER],
            ("h", "x"),
            ["AddRowScaleWithSum"],
        ),
        (  # the sum is read before its norm is computed
            [node("Add", ["r", "r"], ["x"]), node("Tanh", ["x"], ["t"]), *SCALE, *LAYER],
            ("h", "t"),
            ["AddRowScaleWithSum"],
        ),
        (
            [
                *SCALE,
                *LAYER,
                node("Add", ["h", "r"], ["t"]),
                node("Mul", ["t", "t"], ["square_of_t"]),
                node("ReduceMean", ["square_of_t", "last"], ["mean_of_t"], keepdims=1),
                node("Add", ["mean_of_t", "epsilon"], ["shifted"]),
                node("Sqrt", ["shifted"], ["root"]),
                node("Reciprocal", ["root"], ["s2"]),
            ],
            ("t", "s2"),
            ["RowScale", "AddScaledRowScaleWithSum"],
        ),
        (  # another epsilon, whose call gets the name that the sum leaves
            [
                node("Add", ["r", "r"], ["x"]),
                *SCALE,
                *LAYER,
                node("Mul", ["h", "h"], ["square_of_h"]),
                node("ReduceMean", ["square_of_h", "last"], ["mean_of_h"], keepdims=1),
                node("Add", ["mean_of_h", "wide"], ["shifted"]),
                node("Sqrt", ["shifted"], ["root"]),
                node("Reciprocal", ["root"], ["s2"]),
            ],
            ("h", "x", "s2"),
            ["AddRowScaleWithSum", "RowScale"],
        ),
        (
            [*SCALE[:3], *ROW_EPSILON, node("Mul", ["normed", "gamma"], ["y"])],
            ("y",),
            ["RMSNormRowEpsilonScale"],
        ),
        (  # a value other than the root's operand
            [*SCALE[:3], *ROW_EPSILON[:-1], node("Mul", ["inverse_root", "x"], ["y"])],
            ("y", "u"),
            [],
        ),
        (  # a bias, no residual
            [node("Add", ["r", "b"], ["x"]), *SCALE, *LAYER],
            ("h", "x"),
            ["RowScale"],
        ),
        # Statistics with other readers, and a product at the end.
        ([*SCALE, *LAYER, node("Relu", ["u"], ["y"])], ("h", "y", "inverse"), []),
    ],
    ids=[
        *("scale", "relu", "gelu", "silu", "sum", "sum read before", "scaled sum"),
        *("two epsilons", "row epsilon", "root of another", "bias", "read elsewhere"),
    ],
)
def test_numbers_of_rows_become_calls(
    nodes: list[onnx.NodeProto], outputs: tuple[str, ...], calls: list[str]
) -> None:
    model = model_of(nodes, *outputs)
    result = onnxfold.optimize(model, target="kernels", defer="all")
    assert "left_out" not in result.report
    written = result.model
    found = [each.op_type for each in written.graph.node if each.domain == DOMAIN]
    assert found == calls
    expected = outputs_of(model, kernels=False)
    for kernels in (False, True):
        for got, want in zip(outputs_of(written, kernels=kernels), expected, strict=True):
            # Float32 of products of 16 terms, a root, a quotient: 1e-5 of values not above 16.
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def test_a_deferred_model_runs_by_the_kernels() -> None:
    nodes = [
        *SCALE[:4],
        node("Div", ["x", "inverse"], ["n"]),
        node("Mul", ["n", "gamma"], ["y"]),
        node("MatMul", ["y", "W"], ["h"]),
        node("Add", ["h", "b"], ["z"]),
        node("Relu", ["z"], ["out"]),
    ]
    model = model_of(nodes, "out")
    written = onnxfold.optimize(model, target="kernels", defer="all").model
    found = [each.op_type for each in written.graph.node if each.domain == DOMAIN]
    assert found == ["RowScale", "ScaleRowsBiasRelu"]
    (got,), (want,) = outputs_of(written, kernels=True), outputs_of(model, kernels=False)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def test_the_name_of_a_product_is_known_in_any_order() -> None:
    """PyTorch declares sequence*batch for the rows of batch and sequence."""
    nodes = [
        *SCALE[:4],
        node("Div", ["x", "inverse"], ["n"]),
        node("Reshape", ["n", "flat"], ["rows"]),
        node("MatMul", ["rows", "W"], ["h"]),
        node("Add", ["h", "b"], ["z"]),
        node("Relu", ["z"], ["out"]),
    ]
    model = model_of(nodes, "out")
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, C]), "flat"))
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param, shape.dim[1].dim_param = "batch", "sequence"
    for name in ("rows", "h", "z"):
        declared = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["sequence*batch", C])
        model.graph.value_info.append(declared)
    written = onnxfold.optimize(model, target="kernels", defer="all").model
    found = [each.op_type for each in written.graph.node if each.domain == DOMAIN]
    assert found == ["RowScale", "ScaleRowsBiasRelu"]


@pytest.mark.parametrize(
    ("axes", "kept", "of_rows"),
    [("{1}", 1, True), ("{-1}", 1, True), ("{0}", 1, False), ("{1}", 0, False), (None, 1, False)],
)
def test_a_reduction_of_rows_has_known_axes_that_stay(
    axes: str | None, kept: int, of_rows: bool
) -> None:
    constant = "" if axes is None else f"axes = Constant <value = int64[1] {axes}> ()"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> agraph (float[2,3] x'
        f"{', int64[1] axes' if axes is None else ''}) => (float y) {{ {constant}"
        f" y = ReduceMean <keepdims = {kept}> (x, axes) }}"
    )
    view = ModelInfo(ir.from_proto(model))
    (node,) = (node for node in view.nodes() if node.op_type == "ReduceMean")
    assert reduces_rows(view, node, rank=2) == of_rows
