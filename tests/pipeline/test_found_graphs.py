"""Graphs of other generators whose right plans the proof once refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error

BOUND = 1e-12  # float64 throughout


def _heads() -> ir.Model:
    """[B, T, 6] as [B, T, 2, 3] by a computed shape, and then heads first."""
    body = (
        "h = MatMul(x, W) s = Shape<end=2>(x) c = Concat<axis=0>(s, tail) r = Reshape(h, c) "
        "t = Transpose<perm=[0,2,1,3]>(r) n = LayerNormalization<axis=-1>(t, g) y = Relu(n)"
    )
    made: dict[str, Array] = weights(W=(6, 6), g=(3,))
    made["tail"] = np.array([2, -1])
    return graph(body, "double[B,T,6] x", "double[B,2,T,3] y", made)


def _constant() -> ir.Model:
    """A norm of a constant whose epsilon is added to the deviation."""
    body = (
        "m = ReduceMean<keepdims=1>(c, last) d = Sub(c, m) s = Mul(d, d) "
        "v = ReduceMean<keepdims=1>(s, last) r = Sqrt(v) e = Add(r, eps) n = Div(d, e) "
        "y = Add(n, x)"
    )
    made: dict[str, Array] = weights(c=(4, 6))
    made |= {"last": np.array([-1]), "eps": np.array(1e-5)}
    return graph(body, "double[4,6] x", "double[4,6] y", made)


@pytest.mark.parametrize(
    ("make", "folds"),
    [(_heads, 1), (_constant, 1)],
    ids=lambda each: str(each)[10:17],
)
def test_a_right_plan_is_proved(make: object, folds: int) -> None:
    assert callable(make)
    model = make()
    result = onnxfold.optimize(model)
    assert len(result.plan.folds) == folds
    assert result.report["proof"]["passed"]
    assert error(model, result.model) < BOUND
    again = onnxfold.optimize(result.model, check=0)
    assert not again.changed
