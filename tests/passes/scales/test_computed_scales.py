"""Scales that the model computes from constants, in its own type."""

from __future__ import annotations

import onnx
from onnx import parser

import onnxfold

# TorchScript's export of scaled_dot_product_attention: the root of 1 / sqrt(size of a head).
ROOT_OF_SCALE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[2, 3] y)
<float[3, 3] W = {1, 2, 0.3, 4, 5, 6, 7, 8, 9}, float[3] b = {0.3, 2, 3}, float one = {1}> {
    size = Constant <value = int64 {8}> ()  wide = Cast <to = 1> (size)  root = Sqrt (wide)
    scale = Div (one, root)  number = Sqrt (scale)  m = MatMul (x, W)  a = Add (m, b)
    y = Mul (a, number)
}
"""


def test_a_scale_is_moved_as_it_would_be_without_roundings() -> None:
    result = onnxfold.optimize(parser.parse_model(ROOT_OF_SCALE))
    assert "left_out" not in result.report
    assert isinstance(result.model, onnx.ModelProto)
    assert not any(node.op_type == "Mul" for node in result.model.graph.node)
