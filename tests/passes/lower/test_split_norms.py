"""RMS norms that skip norms are split into: no operator that only ONNX Runtime looks for stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfold
from tests.pairs import pairs

WIDTH = 16


def _model(dtype: type, *, second: float, biases: bool, opset: int) -> onnx.ModelProto:
    """Two skip norms of ONNX Runtime, whose sums others read as well."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    bias = ["bias"] if biases else []
    read = "k" if biases else "h"

    def skip(inputs: list[str], outputs: list[str], epsilon: float) -> onnx.NodeProto:
        op = "SkipSimplifiedLayerNormalization"
        return helper.make_node(op, inputs, outputs, domain="com.microsoft", epsilon=epsilon)

    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        *([helper.make_node("Add", ["h", "before"], ["k"])] if biases else []),
        skip([read, "x", "gamma", *bias], ["n", "", "", "s"], 1e-5),
        helper.make_node("MatMul", ["n", "V"], ["p"]),
        skip(["p", "s", "gamma"], ["m", "", "", "t"], second),
        helper.make_node("Tanh", ["m"], ["y"]),
        helper.make_node("Tanh", ["t"], ["z"]),
    ]
    rng = np.random.default_rng(0)
    shapes = {"W": (WIDTH, WIDTH), "V": (WIDTH, WIDTH), "gamma": (WIDTH,)}
    shapes |= {"bias": (WIDTH,), "before": (WIDTH,)} if biases else {}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(dtype), name)
        for name, shape in shapes.items()
    ]
    x, y, z = (helper.make_tensor_value_info(name, kind, ["B", 3, WIDTH]) for name in "xyz")
    graph = helper.make_graph(nodes, "graph", [x], [y, z], weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pairs(
    kind=[(np.float32, 17), (np.float32, 12), (np.float16, 17)],
    second=[1e-5, 1e-6],
    biases=[False, True],
    target=["onnx", "kernels"],
)
def test_the_checker_takes_what_it_took(
    kind: tuple[type, int], second: float, biases: bool, target: str
) -> None:
    """A file for kernels has one epsilon for each name; norms with another are spelled out."""
    original = _model(kind[0], second=second, biases=biases, opset=kind[1])
    onnx.checker.check_model(original)
    once = onnxfold.optimize(original, target=target)
    onnx.checker.check_model(once.model)
    assert not {n.op_type for n in once.model.graph.node} & {"SimplifiedLayerNormalization"}
    assert "left_out" not in once.report
    assert not onnxfold.optimize(once.model, target=target, check=None).changed


def test_the_checker_refuses_the_operator_of_onnxruntime() -> None:
    """Sessions of ONNX Runtime 1.17 to 1.32 look for it in ONNX's domain, and in no other."""
    made = onnxfold.optimize(
        _model(np.float32, second=1e-5, biases=False, opset=17), target="ort", check=0
    )
    assert "SimplifiedLayerNormalization" in {node.op_type for node in made.model.graph.node}
    with pytest.raises(onnx.checker.ValidationError, match="No Op registered"):
        onnx.checker.check_model(made.model)
