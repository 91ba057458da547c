"""Gammas and betas that TensorFlow spells inside a norm: x * (r * gamma) + (beta - mean * ...)."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

import onnxfold

NORM = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[B, 3, 4] x) => (float[B, 3, 2] y)
<float tiny = {0.001}, float[1, 1, 4] gamma = {1.5, -2.0, 0.5, 1.0},
 float[1, 1, 4] beta = {0.25, 0.5, -1.0, 2.0}, float[4, 2] W = {1, 2, 3, 4.5, -5, 6, 7, 8},
 float[2] b = {1.5, -2}> {
    mean = ReduceMean <axes = [-1]> (x)  centred = Sub (x, mean)
    square = Mul (centred, centred)  variance = ReduceMean <axes = [-1]> (square)
    shifted = Add (variance, tiny)  deviation = Sqrt (shifted)  r = Reciprocal (deviation)
    scale = Mul (r, gamma)  scaled = Mul (x, scale)  negative = Neg (mean)
    offset = Mul (negative, scale)  rest = Add (offset, beta)  norm = Add (scaled, rest)
    m = MatMul (norm, W)  y = Add (m, b)
}
"""


# As tf.nn.batch_normalization: beta - mean * scale.
TAKEN = NORM.replace("negative = Neg (mean)", "").replace("Mul (negative,", "Mul (mean,")
TAKEN = TAKEN.replace("Add (offset, beta)", "Sub (beta, offset)")


# As x * (r * gamma) + (beta - mean * r * gamma) in PyTorch.
TWICE = TAKEN.replace("Mul (mean, scale)", "Mul (mean, r)")
TWICE = TWICE.replace("rest = Sub (beta, offset)", "o = Mul (offset, gamma) rest = Sub (beta, o)")


@pytest.mark.parametrize("target", ["onnx", "kernels"])
@pytest.mark.parametrize("norm", [NORM, TAKEN, TWICE], ids=["added", "taken from", "twice"])
def test_they_move_in_the_first_run(norm: str, target: str) -> None:
    result = onnxfold.optimize(parser.parse_model(norm), target=target)
    assert "left_out" not in result.report
    assert [(fusion.gamma, fusion.beta) for fusion in result.plan.fusions] == [(True, True)]
    assert isinstance(result.model, onnx.ModelProto)
    assert not onnxfold.optimize(result.model, target=target).changed


COPIED = """
<ir_version: 8, opset_import: ["" : 14]>
g (float[B, 3, 4] x) => (float[B, 3, 2] y)
<float tiny = {0.001}, float[4] gamma = {1.5, -2.0, 0.5, 1.0}, float[4] beta = {0.25, 0.5, -1, 2},
 float[4, 2] W = {1, 2, 3, 4.5, -5, 6, 7, 8}, float[2] b = {1.5, -2},
 float[4, 4] V = {1, -2, 3, 4, 5, 6, -7, 8, 9, 10, 11, -12, 13, 14, 15, 16}> {
    h = MatMul (x, V)  mean = ReduceMean <axes = [-1]> (h)  centred = Sub (h, mean)
    square = Mul (centred, centred)  variance = ReduceMean <axes = [-1]> (square)
    shifted = Add (variance, tiny)  deviation = Sqrt (shifted)
    quotient = Div (centred, deviation)  copy = Identity (quotient)  second = Identity (copy)
    scaled = Mul (second, gamma)  norm = Add (scaled, beta)  m = MatMul (norm, W)
    y = Add (m, b)
}
"""


@pytest.mark.parametrize("target", ["onnx", "kernels"])
def test_an_identity_in_front_of_them_goes_too(target: str) -> None:
    """If it were left after the norm, it would hide the norm from the report."""
    result = onnxfold.optimize(parser.parse_model(COPIED), target=target)
    assert [(fusion.gamma, fusion.beta) for fusion in result.plan.fusions] == [(True, True)]
    (row,) = result.report["inspect"]["norms"]
    assert (row["output"], row["action"]) == ("norm", "rms")
    assert isinstance(result.model, onnx.ModelProto)
    assert not any(node.op_type == "Identity" for node in result.model.graph.node)
    assert not onnxfold.optimize(result.model, target=target).changed


def test_a_gamma_inside_moves_where_beta_comes_last() -> None:
    text = NORM.replace("scaled = Mul (x, scale)", "scaled = Mul (centred, scale)")
    text = text.replace("norm = Add (scaled, rest)", "norm = Add (scaled, beta)")
    result = onnxfold.optimize(parser.parse_model(text))
    assert [(fusion.gamma, fusion.beta) for fusion in result.plan.fusions] == [(True, True)]
