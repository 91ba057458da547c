"""Norms whose gamma and beta belong to each sample: one operator, then a Mul and an Add."""

from __future__ import annotations

import onnx
import pytest

import onnxfold
from tests.recognition.replay import model, with_constants

BODY = """
two = Constant<value = float {2.0}>()  e = Constant<value = float {1e-5}>()
one = Constant<value = float {1.0}>()  h = MatMul(x, w0)  scale = MatMul(x, wg)
shift = MatMul(x, wb)  gamma = ReduceMax<axes=[1]>(scale)  beta = ReduceMax<axes=[1]>(shift)
g = Add(gamma, one)  u = ReduceMean<axes=[-1]>(h)  d = Sub(h, u)  q = Mul(d, d)
v = ReduceMean<axes=[-1]>(q)  ve = Add(v, e)  s = Sqrt(ve)  r = Reciprocal(s)  m = Mul(r, g)
hm = Mul(h, m)  um = Mul(u, m)  c = Sub(beta, um)  n = Add(hm, c)  y = MatMul(n, w1)
"""
INPUTS = "float[B,3,8] x, float[8,8] w0, float[8,8] wg, float[8,8] wb, float[8,8] w1"


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_a_conditional_norm_folds_and_keeps_its_gamma_and_beta_behind(target: str) -> None:
    proto = with_constants(model(BODY, INPUTS, "float[B,3,8] y"))
    result = onnxfold.optimize(proto, target=target)
    assert [fold.norm for fold in result.plan.folds]
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed
    assert isinstance(result.model, onnx.ModelProto)
    types = [node.op_type for node in result.model.graph.node]
    assert types[-3:] == ["Mul", "Add", "MatMul"]
    assert "Sub" not in types
