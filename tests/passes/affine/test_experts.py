"""Weights of experts: one for each batch of a product, or picked by a router."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tests.graphs import Array, graph
from tests.passes.affine.affine_graphs import fuse, proved_with, rightly

RNG = np.random.default_rng(5)
NORM = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
RMS = "n = RMSNormalization<axis=-1>(x, gamma)"
_THREE = RMS.replace("gamma", "three")
E, D, F = 4, 6, 5
MADE: dict[str, Array] = {
    "gamma": RNG.uniform(0.5, 1.5, D),
    "beta": RNG.standard_normal(D),
    "W": RNG.standard_normal((E, D, F)),
    "V": RNG.standard_normal((E, F, D)),
    "b": RNG.standard_normal((E, 1, F)),
    "c": RNG.standard_normal((E, F, 1)),
    "one": RNG.standard_normal((1, D, F)),
    "row": RNG.standard_normal(F),
    "three": RNG.uniform(0.5, 1.5, 3),
    "last": np.int64([2]),
}
# What follows the norm, and the shape of x: with a bias for each expert.
BIASED = {
    "tokens of each expert": ("m = MatMul(n, W) y = Add(m, b)", f"{E},T,{D}"),
    "all tokens to all experts": ("m = MatMul(n, W) y = Add(m, b)", f"1,T,{D}"),
    "without a batch": ("m = MatMul(n, W) y = Add(m, b)", f"T,{D}"),
    "from the left": (
        "t = Transpose<perm=[0,2,1]>(n) m = MatMul(V, t) y = Add(m, c)",
        f"{E},T,{D}",
    ),
    "a batch of one": ("m = MatMul(n, one) y = Add(m, row)", f"B,T,{D}"),
}
PICKED = {
    "GatherND": "w = GatherND(V, i)",
    "Gather": "w = Gather<axis=0>(V, j)",
}


def _model(text: str, x: str, norm: str = NORM, opset: int = 23) -> ir.Model:
    body = f"{norm} {text}"
    inputs = f"double[{x}] x"
    inputs += ", int64[3,1] i" if "(V, i)" in body or "(t, i)" in body else ""
    inputs += ", int64[3] j" if ", j)" in body else ""
    return graph(body, inputs, "double[a,b,c] y", MADE, opset)


@pytest.mark.parametrize("case", BIASED)
def test_beta_goes_into_the_bias_of_each_expert(case: str) -> None:
    model = _model(*BIASED[case])
    fused = rightly(model, (1, 1))
    assert not fuse(fused.model).decision.fusions  # a second run


@pytest.mark.parametrize("name", ["W", "b"])
def test_a_wrong_weight_or_bias_of_one_expert_fails_the_proof(name: str) -> None:
    model = _model(*BIASED["tokens of each expert"])
    assert not proved_with(model, fuse(model), name)


@pytest.mark.parametrize("picked", PICKED)
def test_gamma_goes_into_weights_that_a_router_picks(picked: str) -> None:
    text = f"{PICKED[picked]} u = Unsqueeze(n, last) y = MatMul(w, u)"
    model = _model(text, f"3,{D}", RMS)
    fused = rightly(model, (1, 0))
    assert not fuse(fused.model).decision.fusions
    assert not proved_with(model, fused, "V")


REFUSED = {
    "no bias for each expert": ("m = MatMul(n, W) y = Add(m, row)", f"{E},T,{D}", NORM),
    "beta of picked experts": ("w = Gather<axis=0>(W, j) y = MatMul(n, w)", f"3,T,{D}", NORM),
    "picked of what is turned": (
        "t = Transpose<perm=[0,2,1]>(W) w = GatherND(t, i) u = Unsqueeze(n, last) y = MatMul(w, u)",
        f"3,{D}",
        RMS,
    ),
    "picked along the channels": ("w = Gather<axis=1>(W, j) y = MatMul(n, w)", "4,T,3", _THREE),
    "picked for another reader too": (
        "w = Gather<axis=0>(W, j) z = Relu(w) m = MatMul(n, w) k = MatMul(n, z) y = Add(m, k)",
        f"3,T,{D}",
        RMS,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_experts_cannot_take_stays(case: str) -> None:
    fused = fuse(_model(*REFUSED[case]))
    assert fused.moved == (0, 0)
