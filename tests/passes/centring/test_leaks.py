"""Other readers of a value inside a LayerNorm, and whether a fold changes it."""

from __future__ import annotations

import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error

# float64 throughout: some hundred roundings of 2^-53.
BOUND = 1e-12


@pytest.mark.parametrize(("read", "folds"), [("m", 0), ("d", 1), ("q", 1), ("v", 1), ("s", 1)])
def test_what_follows_the_subtraction_may_be_read_and_the_mean_may_not(
    read: str, folds: int
) -> None:
    """A centered x has a mean of 0, which its reader would see; the rest is what it was."""
    body = (
        "x = MatMul(u, W) m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) "
        f"v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) s = Sqrt(e) y = Div(d, s) z = Abs({read})"
    )
    constants = {**weights(W=(5, 6)), **weights(eps=())}
    constants["eps"] = abs(constants["eps"]) * 1e-5
    model = graph(body, "double[B,5] u", "double[B,6] y, double[B,N] z", constants, opset=17)
    result = onnxfold.optimize(model, check=0)
    assert len(result.plan.folds) == folds
    assert error(model, result.model) < BOUND
