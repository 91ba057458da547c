"""Norms that share x - mean(x), or more of themselves, fold together."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import graph, weights

_ROOT = "c = Mul(d, d) v = ReduceMean<axes=[-1]>(c) e = Add(v, eps) r = Sqrt(e) "
_SHARED = {
    "the difference": (
        _ROOT + "c2 = Mul(d, d) v2 = ReduceMean<axes=[-1]>(c2) e2 = Add(v2, eps2) r2 = Sqrt(e2) "
        "q = Div(d, r) q2 = Div(d, r2) "
    ),
    "all up to the root": _ROOT + "q = Div(d, r) q2 = Div(d, r) ",
    "the quotient": _ROOT + "q = Div(d, r) q2 = Identity(q) ",
}


def _model(shared: str) -> ir.Model:
    made = weights(W=(6, 6), gamma=(6,), gamma2=(6,), beta=(6,), V=(6, 3)) | {
        "eps": np.array(1e-5),
        "eps2": np.array(1e-3),
    }
    constants = {name: array.astype(np.float32) for name, array in made.items()}
    body = (
        "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) "
        + _SHARED[shared]
        + "g = Mul(q, gamma) y = Add(g, beta) g2 = Mul(q2, gamma2) t = Tanh(g2) z = MatMul(t, V)"
    )
    return graph(body, "float[B,4,6] x", "float[B,4,6] y, float[B,4,3] z", constants, opset=17)


_TENSORFLOW = (
    "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) "
    + _ROOT
    + "i = Reciprocal(r) n = Neg(m) s = Mul(i, gamma) p = Mul(h, s) o = Mul(n, s) q = Add(o, beta) "
    "y = Add(p, q) s2 = Mul(i, gamma2) p2 = Mul(h, s2) o2 = Mul(n, s2) g2 = Add(p2, o2) "
    "t = Tanh(g2) z = MatMul(t, V)"
)


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_norms_that_share_mean_and_root_in_products_fold_together(target: str) -> None:
    """As tf2onnx merges the two norms of a block with parallel branches."""
    made = weights(W=(6, 6), gamma=(6,), gamma2=(6,), beta=(6,), V=(6, 3)) | {"eps": np.array(1e-5)}
    constants = {name: array.astype(np.float32) for name, array in made.items()}
    outputs = "float[B,4,6] y, float[B,4,3] z"
    result = onnxfold.optimize(
        graph(_TENSORFLOW, "float[B,4,6] x", outputs, constants, opset=17), target=target
    )
    assert "left_out" not in result.report
    assert len(result.plan.folds) == 2
    assert not any(node.op_type == "Sub" for node in result.model.graph)
    assert not onnxfold.optimize(result.model, target=target).changed


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
@pytest.mark.parametrize("shared", _SHARED)
def test_norms_that_share_their_difference_fold_together(shared: str, target: str) -> None:
    result = onnxfold.optimize(_model(shared), target=target)
    summary = result.report["inspect"]["summary"]
    assert summary["foldable"] == summary["layer_norms"] >= 1
    assert "left_out" not in result.report
    assert result.verification is not None
    assert result.verification.passed
    left = [node for node in result.model.graph if node.op_type == "Sub"]
    assert not left
    assert not onnxfold.optimize(result.model, target=target).changed
