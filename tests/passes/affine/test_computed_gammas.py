"""Gammas that are computed from a weight, as weight + 1 of Nemotron and Gemma."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rich.console import Console

import onnxfold
from onnxfold.report.printed import print_norms
from tests.graphs import graph, weights
from tests.pairs import pairs

_SPELLED = "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) "
_NORMS = {
    "operator": "n = LayerNormalization(h, gamma, beta) ",
    "operator without beta": "n = LayerNormalization(h, gamma) ",
    "spelled": f"m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) {_SPELLED} k = Div(d, r) "
    "g = Mul(k, gamma) n = Add(g, beta) ",
    "RMS": f"d = Identity(h) {_SPELLED} i = Reciprocal(r) k = Mul(h, i) n = Mul(k, gamma) ",
}
_GAMMAS = {
    "w + 1": "gamma = Add(w, one) ",
    "1 + w": "gamma = Add(one, w) ",
    "behind Identity": "z = Identity(w) gamma = Add(z, one) ",
    "w - -1": "gamma = Sub(w, minus) ",
    "w + ones": "gamma = Add(w, ones) ",
    "in float32 and back": "z = Cast<to=1>(w) s = Add(z, wide_one) gamma = Cast<to={to}>(s) ",
}


def _model(
    norm: str, gamma: str, kind: str, width: int = 6, behind: str = "y = Add(p, c)"
) -> ir.Model:
    dtype, to = {"float": (np.float32, 1), "float16": (np.float16, 10)}[kind]
    body = f"{gamma.format(to=to)} h = MatMul(x, W) {norm} p = MatMul(n, V) {behind}"
    shapes = {"W": (4, width), "V": (width, 3), "w": (width,), "beta": (width,), "c": (3,)}
    made = {name: (0.1 * array).astype(dtype) for name, array in weights(**shapes).items()}
    made |= {"one": np.array(1, dtype), "minus": np.array(-1, dtype), "ones": np.ones(width, dtype)}
    made |= {"eps": np.array(2.0**-10, dtype), "wide_one": np.array(1, np.float32)}
    return graph(body, f"{kind}[B,4,4] x", f"{kind}[B,4,3] y", made, opset=17)


@pairs(norm=_NORMS, gamma=_GAMMAS.values(), kind=["float", "float16"])
def test_a_gamma_that_is_computed_moves_and_nothing_of_it_is_left(
    norm: str, gamma: str, kind: str
) -> None:
    result = onnxfold.optimize(_model(_NORMS[norm], gamma, kind), target="ort")
    assert result.report["inspect"]["summary"]["gamma_fused"] == 1
    assert "w" not in result.model.graph.initializers
    assert not {"one", "wide_one", "minus"} & set(result.model.graph.initializers)
    assert all(n.outputs[0].uses() or n.outputs[0].is_graph_output() for n in result.model.graph)


def test_a_gamma_as_wide_as_large_models_have_moves() -> None:
    result = onnxfold.optimize(_model(_NORMS["operator"], _GAMMAS["w + 1"], "float", 5000))
    assert result.report["inspect"]["summary"]["gamma_fused"] == 1


@pytest.mark.parametrize("norm", ["operator", "spelled"])
def test_where_it_stays_the_terminal_says_why(
    norm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in Nemotron, whose linear layers have no bias for beta."""
    model = _model(_NORMS[norm], _GAMMAS["w + 1"], "float", 2, "y = Tanh(p)")
    document = onnxfold.inspect(model)
    assert document["summary"]["gamma_fused"] == 0
    print_norms(Console(width=1000), document)
    assert "1 gamma and 1 beta stay (shift_cannot_cross): MatMul" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("gamma = DequantizeLinear(codes, one) beta = Identity(w)", "quantised"),
        ("gamma = Identity(w) beta = DequantizeLinear(codes, one)", "quantised"),
        ("gamma = Identity(given) beta = Identity(w)", "dynamic_weight"),
        ("gamma = Identity(w) beta = Relu(given)", "dynamic_weight"),
    ],
)
def test_the_reason_says_whether_a_part_is_quantized_or_computed(part: str, code: str) -> None:
    body = f"{part} n = LayerNormalization(x, gamma, beta) p = MatMul(n, V) y = Add(p, c)"
    made = {name: array.astype("f") for name, array in weights(V=(6, 3), w=(6,), c=(3,)).items()}
    made |= {"codes": np.arange(1, 7).astype(np.int8), "one": np.float32(0.1)}
    model = graph(body, "float[B,6] x, float[6] given", "float[B,3] y", made, opset=17)
    (norm,) = onnxfold.inspect(model)["norms"]
    assert norm["affine_reason"]["code"] == code
