"""Shapes of operators that onnx's inference does not know."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from onnxfold.graph import GraphView

INPUTS = "float[B,4,T,8] q, float[B,4,S,8] k, float[B,4,8,S] kt, float[B,3,9,9] i, float[5,3,3,3] w"


def shape_of(call: str, opset: int = 17):
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    text = f"{head}\nagraph ({INPUTS}, float[8] g) => (y)\n{{ h = {call}\n y = Neg(h) }}"
    view = GraphView(ir.from_proto(parser.parse_model(text)))
    return view.shape(view.model.graph.outputs[0])


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("com.microsoft.FusedMatMul<transB=1, alpha=0.5>(q, k)", ("B", 4, "T", "S")),
        ("com.microsoft.FusedMatMul(q, kt)", ("B", 4, "T", "S")),
        ("com.microsoft.FusedMatMul<transA=1, transB=1>(kt, q)", ("B", 4, "S", "T")),
        ("com.microsoft.FusedMatMul<transBatchA=1>(q, kt)", None),
        ('com.microsoft.FusedConv<pads=[1,1,1,1], activation="Relu">(i, w)', ("B", 5, 9, 9)),
        ("com.microsoft.FastGelu(q)", ("B", 4, "T", 8)),
    ],
)
def test_a_standard_operator_of_the_same_shape_stands_in(call, shape):
    assert shape_of(call) == shape


def test_layer_normalization_below_its_opset_keeps_the_shape():
    assert shape_of("LayerNormalization(q, g)", opset=14) == ("B", 4, "T", 8)
