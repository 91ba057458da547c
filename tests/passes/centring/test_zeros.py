"""Zeros made by a product with 0, which see nothing of a stream: graph networks add to them."""

from __future__ import annotations

import numpy as np
import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error

# float64 throughout: some hundred roundings of 2^-53, of numbers up to 10.
BOUND = 1e-12
_STREAM = "h = MatMul(x, W) {} n = LayerNormalization(h, gamma, beta) y = Add(n, k)"


@pytest.mark.parametrize("zeros", [np.array(0.0), np.zeros(6), np.zeros((4, 1)), np.zeros((4, 6))])
@pytest.mark.parametrize("product", ["z = Mul(h, zeros)", "z = Mul(zeros, h)"])
def test_a_product_with_zeros_does_not_see_a_shift(product: str, zeros: np.ndarray) -> None:
    text = _STREAM.format(f"{product} s = Tanh(x) u = MatMul(s, V) v = Add(z, u) k = Exp(v)")
    made = {**weights(W=(6, 6), V=(6, 6), gamma=(6,), beta=(6,)), "zeros": zeros}
    model = graph(text, "double[B,4,6] x", "double[B,4,6] y", made, opset=17)
    result = onnxfold.optimize(model, check=0)
    assert len(result.plan.folds) == 1
    assert "left_out" not in result.report
    assert error(model, result.model) < BOUND


@pytest.mark.parametrize("product", ["z = Mul(h, some)", "z = Div(some, h)"])
def test_one_number_that_is_not_zero_sees_it(product: str) -> None:
    """Were the stream centered all the same, the result would be another one."""
    text = _STREAM.format(f"{product} k = Exp(z)")
    some = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    made = {**weights(W=(6, 6), gamma=(6,), beta=(6,)), "some": some}
    model = graph(text, "double[B,4,6] x", "double[B,4,6] y", made, opset=17)
    assert len(onnxfold.optimize(model, check=0).plan.folds) == 0
