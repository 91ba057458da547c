"""A bias subtracted after a linear layer absorbs beta as an added one does."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.passes.prepare.working_copy import prepare


def subtracted(norm: str) -> onnx.ModelProto:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[B,3,4] x, float[B,3,2] r) => (float[B,3,2] y) {"
        f" {norm} m = MatMul(n, W)  z = Sub(m, c)  y = Mul(z, r) }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in {"G": (4,), "B": (4,), "W": (4, 2), "c": (2,), "V": (4, 4)}.items():
        if any(name in node.input for node in model.graph.node):
            array = rng.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_it_takes_beta_without_a_new_addition(target: str) -> None:
    model = subtracted("h = MatMul(x, V)  n = LayerNormalization(h, G, B)")
    result = onnxfold.optimize(model, target=target)
    assert [(fusion.gamma, fusion.beta) for fusion in result.plan.fusions] == [(True, True)]
    behind = [node.op_type for node in result.model.graph.node][-3:]
    assert behind == ["MatMul", "Add", "Mul"]
    assert result.proof is not None
    assert result.proof.passed
    assert not onnxfold.optimize(result.model, target=target).changed


def test_it_stays_where_nothing_moves() -> None:
    result = onnxfold.optimize(subtracted("n = Tanh(x)"))
    assert not result.changed
    assert [node.op_type for node in result.model.graph.node] == ["Tanh", "MatMul", "Sub", "Mul"]


def test_it_stays_where_its_name_is_taken() -> None:
    model = subtracted("h = MatMul(x, V)  n = LayerNormalization(h, G, B)")
    model.graph.input[1].name = model.graph.node[-1].input[1] = "z.bias"
    prepared = prepare(ir.from_proto(model)).model
    assert [node.op_type for node in prepared.graph][-3:] == ["MatMul", "Sub", "Mul"]
