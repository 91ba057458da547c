"""Constants after a norm become its gamma and beta, however many operators apply them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error

_NORM = "h = MatMul(x, W) m = LayerNormalization<axis=-1>(h, {parts}) "
_SPELLED = (
    "h = MatMul(x, W) u = ReduceMean<axes=[-1]>(h) d = Sub(h, u) c = Mul(d, d) "
    "v = ReduceMean<axes=[-1]>(c) e = Add(v, eps) r = Sqrt(e) q = Div(d, r) "
)
_TAILS = {
    "gamma and beta": _NORM.format(parts="ones") + "g = Mul(m, gamma) n = Add(beta, g) ",
    "gamma of one more": _NORM.format(parts="ones") + "o = Add(one, gamma) n = Mul(o, m) ",
    "a scale": _NORM.format(parts="gamma, beta") + "n = Mul(m, half) ",
    "two shifts": _NORM.format(parts="ones") + "g = Add(m, gamma) n = Add(beta, g) ",
    "a scale behind parts": _SPELLED + "g = Mul(q, gamma) b = Add(g, beta) n = Mul(b, half) ",
    "a sign and a scale behind parts": (
        _SPELLED + "g = Mul(q, gamma) b = Add(g, beta) s = Neg(b) n = Mul(s, half) "
    ),
    "a sign and a scale behind gamma": _SPELLED + "g = Mul(q, gamma) s = Neg(g) n = Mul(s, half) ",
    "a factor of one more": _SPELLED + "o = Add(one, gamma) g = Mul(q, o) n = Add(g, beta) ",
}
_LAYER = "y = MatMul(n, V)"


def _model(body: str, outputs: str = "double[B,4,4] y"):
    made = weights(W=(6, 6), gamma=(6,), beta=(6,), V=(6, 4))
    made |= {"ones": np.ones(6), "one": np.array(1.0), "half": np.array([[0.5]])}
    made["eps"] = np.array(float(np.float32(1e-5)))
    return graph(body, "double[B,4,6] x", outputs, made, opset=17)


@pytest.mark.parametrize("name", _TAILS)
def test_constants_behind_a_norm_move_into_the_next_layer(name: str) -> None:
    model = _model(_TAILS[name] + _LAYER)
    result = onnxfold.optimize(model, target="ort", check=0)
    assert "left_out" not in result.report
    assert [row["action"] for row in result.report["inspect"]["norms"]] == ["rms"]
    operators = Counter(node.op_type for node in result.model.graph)
    # beta comes after the layer, which has no bias
    beta = {"Add": 1} if "beta" in _TAILS[name] else {}
    assert operators == Counter(MatMul=2, SimplifiedLayerNormalization=1, **beta)
    # Both run in float64: some ten roundings of numbers near 1.
    assert error(model, result.model) < 2.0**-46


@pytest.mark.parametrize("name", ["gamma and beta", "a scale", "two shifts"])
def test_a_result_that_is_an_output_stays(name: str) -> None:
    model = _model(_TAILS[name] + _LAYER, "double[B,4,4] y, double[B,4,6] n, double[B,4,6] m")
    result = onnxfold.optimize(model, check=0)
    assert error(model, result.model) < 2.0**-46


def test_a_constant_over_rows_stays_behind_the_norm() -> None:
    body = _NORM.format(parts="gamma, beta") + "n = Mul(m, rows) " + _LAYER
    made = weights(W=(6, 6), gamma=(6,), beta=(6,), V=(6, 4), rows=(4, 1))
    model = graph(body, "double[B,4,6] x", "double[B,4,4] y", made, opset=17)
    result = onnxfold.optimize(model, check=0)
    assert error(model, result.model) < 2.0**-46


def test_a_norm_with_a_cast_in_front_of_its_gamma_has_its_own_row() -> None:
    body = _SPELLED + "k = Cast<to=11>(q) g = Mul(k, gamma) n = Add(g, beta) " + _LAYER
    report = onnxfold.inspect(_model(body))
    assert [(row["action"], row["reason"]) for row in report["norms"]] == [("rms", None)]


_DIVIDED = {
    "of an operator": _NORM.format(parts="gamma, beta") + "n = Div(m, half) ",
    "spelled out": _SPELLED + "g = Mul(q, gamma) b = Add(g, beta) n = Div(b, half) ",
}


@pytest.mark.parametrize("name", _DIVIDED)
def test_a_norm_that_takes_a_divisor_behind_it_keeps_its_row(name: str) -> None:
    (row,) = onnxfold.optimize(_model(_DIVIDED[name] + _LAYER), check=0).report["inspect"]["norms"]
    assert (row["action"], row["reason"]) == ("rms", None)
    assert (row["gamma_fused"], row["beta_fused"]) == (True, True)
