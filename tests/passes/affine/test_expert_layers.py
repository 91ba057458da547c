"""MoE and QMoE of com.microsoft: x enters each expert by one weight, or by two."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.passes.plan import Plan
from tests.graphs import Array, graph
from tests.pairs import pairs
from tests.passes.affine.affine_graphs import error, fuse, proved_with, rightly

RNG = np.random.default_rng(3)
NORM = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
ROUTED = "r = MatMul(n, R) p = Add(r, q)"
E, D, H = 3, 8, 6
MADE: dict[str, Array] = {
    "gamma": RNG.uniform(0.5, 1.5, D),
    "beta": RNG.standard_normal(D),
    "R": RNG.standard_normal((D, E)),
    "q": RNG.standard_normal(E),
    "A": RNG.standard_normal((E, H, D)),
    "a": RNG.standard_normal((E, H)),
    "B": RNG.standard_normal((E, D, H)),
    "b": RNG.standard_normal((E, D)),
    "C": RNG.standard_normal((E, H, D)),
    "c": RNG.standard_normal((E, H)),
    "AA": RNG.standard_normal((E, 2 * H, D)),
    "One": RNG.standard_normal((1, H, D)),
    "Two": RNG.standard_normal((1, D, H)),
}
KEPT = 'k=2, activation_type="silu", normalize_routing_weights=1'
FORMS = {
    "one weight": f"y = com.microsoft.MoE<{KEPT}>(n, p, A, a, B, b)",
    "without biases": f"y = com.microsoft.MoE<{KEPT}>(n, p, A, , B)",
    "two weights": f"y = com.microsoft.MoE<{KEPT}>(n, p, A, a, B, b, C, c)",
    "two weights, one bias": f"y = com.microsoft.MoE<{KEPT}>(n, p, A, , B, , C, c)",
    "gated": 'y = com.microsoft.MoE<k=2, activation_type="swiglu", swiglu_fusion=1>(n, p, AA, , B)',
}


def _model(text: str, dtype: str = "double") -> ir.Model:
    body = f"{NORM} {ROUTED} {text}"
    read = {token.strip("(),") for token in body.split()}
    made = {
        name: array.astype("float32" if dtype == "float" else "float64")
        for name, array in MADE.items()
        if name in read
    }
    return graph(body, f"{dtype}[T,{D}] x", f"{dtype}[a,b] y", made, 17)


@pytest.mark.parametrize("form", FORMS)
def test_gamma_and_beta_go_into_every_expert(form: str) -> None:
    model = _model(FORMS[form])
    fused = rightly(model, (1, 1))
    assert not fuse(fused.model).decision.fusions  # a second run


def test_one_expert_and_rows_of_a_batch() -> None:
    text = 'y = com.microsoft.MoE<k=1, activation_type="silu">(n, p, One, , Two)'
    made = {name: MADE[name] for name in ("gamma", "beta", "One", "Two")}
    inputs = f"double[2,3,{D}] x, double[6,1] p"
    model = graph(f"{NORM} {text}", inputs, "double[a,b,c] y", made, 17)
    rightly(model, (1, 1))


@pytest.mark.parametrize("name", ["A", "a", "B", "b", "C", "c", "R", "q"])
def test_a_wrong_weight_or_bias_of_one_expert_fails_the_proof(name: str) -> None:
    model = _model(FORMS["two weights"])
    assert not proved_with(model, fuse(model), name)


def test_a_weight_left_out_fails_the_proof() -> None:
    model = _model(FORMS["two weights"])
    fused = fuse(model)
    kept = model.graph.initializers["C"].const_value
    assert kept is not None
    assert not proved_with(model, fused, "C", lambda _: kept.numpy())


REFUSED = {
    "as the router": ("y = com.microsoft.MoE(w, n, A, a, B, b)", ""),
    "a weight that is an input": ("y = com.microsoft.MoE(n, p, V, a, B, b)", ROUTED),
    "a bias that is an input, before a mean is subtracted": (
        "m = com.microsoft.MoE(n, p, A, v, B, b) u = ReduceMean<axes=[-1]>(m) y = Sub(m, u)",
        ROUTED,
    ),
    "a weight of another layout": ("y = com.microsoft.MoE(n, p, B, , A)", ROUTED),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_experts_cannot_take_stays(case: str) -> None:
    text, router = REFUSED[case]
    body = f"{NORM} {router} {text}"
    read = {token.strip("(),") for token in body.split()}
    made = {name: array for name, array in MADE.items() if name in read}
    inputs = f"double[T,{D}] x, double[T,{D}] w, double[{E},{H},{D}] V, double[{E},{H}] v"
    model = graph(body, inputs, "double[a,b] y", made, 17)
    assert fuse(model).moved == (0, 0)


def test_a_plan_is_read_back_equal() -> None:
    plan = Plan(fusions=fuse(_model(FORMS["two weights, one bias"])).decision.fusions)
    assert Plan.from_json(plan.to_json()) == plan


def _coded(bits: int, block: int, points: bool, biased: bool = True, raw: bool = True) -> ir.Model:
    """A LayerNorm, a float router and experts of codes; rows of x are 32 wide, of h 16."""
    rng = np.random.default_rng(bits + block)
    d, h, size = 32, 16, {"gamma": 32}
    made: dict[str, Array] = {
        "gamma": rng.uniform(0.5, 1.5, d).astype(np.float32),
        "beta": rng.standard_normal(size["gamma"]).astype(np.float32),
        "R": rng.standard_normal((d, E)).astype(np.float32),
        "q": rng.standard_normal(E).astype(np.float32),
    }
    inputs = ["n", "p"]
    for name, out, inner in (("A", h, d), ("B", d, h)):
        blocks = (inner // block,) if block else ()
        made[name] = rng.integers(0, 256, (E, out, inner * bits // 8), np.uint8)
        made[f"{name}s"] = rng.uniform(0.01, 0.03, (E, out, *blocks)).astype(np.float32)
        made[f"{name}b"] = rng.standard_normal((E, out)).astype(np.float32)
        inputs += [name, f"{name}s", f"{name}b" if biased else ""]
    if points:
        inputs += ["", "", ""]
        for name, out, inner in (("A", h, d), ("B", d, h)):
            shape = (E, out, -(-inner // block * bits // 8)) if block else (E, out * bits // 8)
            made[f"{name}z"] = rng.integers(0, 256, shape, np.uint8)
            inputs.append(f"{name}z")
    more = (f", block_size={block}" if block else "") + (", weights_prepacked=0" if raw else "")
    attributes = f'k=2, activation_type="silu", expert_weight_bits={bits}{more}'
    body = f"{NORM} {ROUTED} y = com.microsoft.QMoE<{attributes}>({', '.join(inputs)})"
    read = {token.strip("(),") for token in body.split()}
    kept = {name: array for name, array in made.items() if name in read}
    return graph(body, f"float[T,{d}] x", "float[a,b] y", kept, 17)


@pairs(bits=[2, 4, 8], block=[0, 16], points=[False, True], biased=[True, False])
def test_beta_goes_past_codes_into_the_bias_of_each_expert(
    bits: int, block: int, points: bool, biased: bool
) -> None:
    model = _coded(bits, block, points, biased)
    fused = fuse(model)
    assert fused.moved == (0, 1)
    assert fused.proof.passed, fused.proof.failures
    assert error(model, fused.model) < 1e-5  # the biases are float32
    for name in ("A", "B"):
        assert fused.model.graph.initializers[name].const_value is not None
    assert not fuse(fused.model).decision.fusions
    assert not proved_with(model, fused, "Ab" if biased else "y.bias", 1e-3)


def test_codes_that_a_device_lays_out_keep_beta() -> None:
    fused = fuse(_coded(4, 16, points=False, raw=False))
    assert fused.moved == (0, 0)
    assert fused.reason == "unsupported_type"


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize(
    "form", ["one weight", "without biases", "gated", "codes", "unbiased codes"]
)
def test_a_session_gives_the_same(form: str, target: str) -> None:
    coded = "codes" in form
    text = FORMS.get(form, "")
    model = (
        _coded(4, 16, points=True, biased=form == "codes") if coded else _model(text, dtype="float")
    )
    proto = ir.to_proto(model)
    result = onnxfold.optimize(proto, target=target, fuse_affine="always", fold="always")
    rows = 3 * RNG.standard_normal((9, 32 if coded else D)).astype(np.float32)
    rows[0], rows[1], rows[2] = 0, 7, rows[2] + 1e3
    options = ort.SessionOptions()
    if target == "kernels":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    first, second = (
        ort.InferenceSession(
            made.SerializeToString(), options, providers=["CPUExecutionProvider"]
        ).run(None, {"x": rows})[0]
        for made in (proto, result.model)
    )
    assert np.abs(first - second).max() < 1e-4 * np.abs(first).max()
    again = onnxfold.optimize(result.model, target=target, fuse_affine="always", fold="always")
    assert not again.changed
