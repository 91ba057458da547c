"""Weights of codes: beta moves into a bias, gamma stays, and no code changes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.graph.edit import Editor
from onnxfold.passes.affine.apply import apply
from onnxfold.passes.affine.decide import BetaCosts, decide_affine
from onnxfold.passes.base import Settings
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from tests.graphs import Array, graph
from tests.passes.affine.affine_graphs import (
    BOUND,
    LARGE,
    error,
    fuse,
    proof_of,
    proved_with,
    rightly,
)

NORM = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
BLOCKS = "com.microsoft.MatMulNBits<K=16, N=3, bits=4, block_size=8>"
RNG = np.random.default_rng(3)


def _constants(**more: Array) -> dict[str, Array]:
    return {
        "gamma": 1 + 0.5 * RNG.standard_normal(16),
        "beta": RNG.standard_normal(16),
        "b": RNG.standard_normal(3),
        "q": RNG.integers(-9, 9, (16, 3)).astype(np.int8),
        "turned": RNG.integers(-9, 9, (3, 16)).astype(np.int8),
        "one": np.float64(0.05),
        "each": RNG.uniform(0.01, 0.1, 3),
        "parts": RNG.uniform(0.01, 0.1, (4, 3)),
        "codes": RNG.integers(0, 256, (3, 2, 4), np.uint8),
        "scales": RNG.uniform(0.01, 0.1, (3, 2)),
        "zeros": RNG.integers(0, 256, (3,), np.uint8),
        **more,
    }


BODIES = {
    "one scale": "w = DequantizeLinear(q, one) m = MatMul(n, w) y = Add(m, b)",
    "a scale for each output": "w = DequantizeLinear<axis=1>(q, each) m = MatMul(n, w) "
    "y = Add(m, b)",
    "blocks": "w = DequantizeLinear<axis=0, block_size=4>(q, parts) m = MatMul(n, w) y = Add(m, b)",
    "turned": "w = DequantizeLinear<axis=0>(turned, each) t = Transpose(w) m = MatMul(n, t) "
    "y = Add(m, b)",
    "an Add before another reader": "w = DequantizeLinear(q, one) m = MatMul(n, w) a = Add(m, b) "
    "y = Relu(a)",
    "codes of a product": f"m = {BLOCKS}(n, codes, scales) y = Add(m, b)",
    "codes with zero points": f"m = {BLOCKS}(n, codes, scales, zeros) y = Add(m, b)",
    "codes with a bias": f"y = {BLOCKS}(n, codes, scales, , , b)",
    "two readers": f"m = {BLOCKS}(n, codes, scales) y0 = Add(m, b) "
    "w = DequantizeLinear(q, one) k = MatMul(n, w) c = Add(k, d) y = Sub(y0, c)",
    "beside a weight of floats": f"y0 = {BLOCKS}(n, codes, scales, , , b) k = MatMul(n, W) "
    "c = Add(k, d) y = Sub(y0, c)",
}
FLOATS = {"W": RNG.standard_normal((16, 3)), "d": RNG.standard_normal(3)}


def _model(body: str, x: str = "B,4", **more: Array) -> ir.Model:
    made = _constants(**FLOATS, **more)
    text = f"{NORM} {BODIES.get(body, body)}"
    return graph(text, f"double[{x},16] x", f"double[{x},3] y", made, opset=21)


@pytest.mark.parametrize("x", ["B,4", "5", "T"])
@pytest.mark.parametrize("body", BODIES)
def test_beta_moves_and_gamma_stays(body: str, x: str) -> None:
    model = _model(body, x)
    fused = rightly(model, (0, 1))
    assert fused.reason == "quantised"
    assert fused.proof.shifted_biases == (2 if body in {"two readers", _BESIDE} else 1)
    assert _stored(model).items() <= _stored(fused.model).items()
    assert not fuse(fused.model).decision.fusions  # a second run


@pytest.mark.parametrize("x", ["B,4", "5"])
@pytest.mark.parametrize("biased", [True, False])
def test_beta_moves_past_codes_of_real_sizes(biased: bool, x: str) -> None:
    """The test of a region alone does not show these."""
    size, rng = 2048, np.random.default_rng(0)
    layer = f"com.microsoft.MatMulNBits<K={size}, N={size}, bits=4, block_size=32>"
    made = {
        "gamma": rng.uniform(0.5, 1.5, size),
        "beta": rng.standard_normal(size),
        "codes": rng.integers(0, 256, (size, size // 32, 16), np.uint8),
        "scales": rng.uniform(0.01, 0.1, (size, size // 32)),
        "b": rng.standard_normal(size),
    }
    last = ", , , b) " if biased else ") y = Add(m, b)"
    body = f"{NORM} {'y' if biased else 'm'} = {layer}(n, codes, scales{last}"
    model = graph(body, f"double[{x},{size}] x", f"double[{x},{size}] y", made, opset=21)
    fused = rightly(model, (0, 1))
    assert fused.proof.shifted_biases == 1
    assert not proved_with(model, fused, "b", 1e-3)


@pytest.mark.parametrize("x", ["5", "T"])
def test_beta_moves_into_the_bias_of_a_gemm(x: str) -> None:
    model = _model("w = DequantizeLinear(q, one) y = Gemm(n, w, b)", x)
    fused = rightly(model, (0, 1))
    assert fused.proof.shifted_biases == 1
    assert not proved_with(model, fused, "b")


_BESIDE = "beside a weight of floats"


def _stored(model: ir.Model) -> Mapping[str, bytes]:
    """Return what may not change: all but the biases and beta."""
    found = model.graph.initializers.items()
    kept = {name: value.const_value for name, value in found if name not in {"b", "d", "beta"}}
    return {name: tensor.tobytes() for name, tensor in kept.items() if tensor is not None}


def test_without_a_bias_beta_is_worth_an_add_or_stays() -> None:
    model = _model(f"y = {BLOCKS}(n, codes, scales)")
    assert fuse(model).moved == (0, 0)
    view = prepare(model).info
    pays = BetaCosts(lambda work: work.elements, lambda *_: 1 << 40)
    decision = decide_affine(view, find_norms(view), allow_split_bytes=LARGE, weighing=pays)
    apply(Editor(view), decision, Settings())
    proof = proof_of(model, view.model, decision.fusions)
    assert proof.passed, proof.failures
    assert [node.op_type for node in view.model.graph][-1] == "Add"
    assert error(model, view.model) < BOUND


@pytest.mark.parametrize(
    ("body", "more", "code"),
    [
        (f"m = {BLOCKS}(n, codes, s) y = Add(m, b)", {}, "dynamic_weight"),
        (f"m = {BLOCKS}(n, codes, scales, , order) y = Add(m, b)",
         {"order": np.arange(16, dtype=np.int32)}, "unsupported_type"),
        ("w = DequantizeLinear(q, r) m = MatMul(n, w) y = Add(m, b)", {}, "dynamic_weight"),
    ],
)  # fmt: skip
def test_codes_that_are_not_known_take_nothing(
    body: str, more: dict[str, Array], code: str
) -> None:
    made = _constants(**more)
    inputs = "double[B,16] x, double[3,2] s, double r"
    fused = fuse(graph(f"{NORM} {body}", inputs, "double[B,3] y", made, opset=21))
    assert fused.moved == (0, 0)
    assert fused.reason == code


@pytest.mark.parametrize("body", BODIES)
def test_a_wrong_bias_fails_the_proof(body: str) -> None:
    model = _model(body)
    fused = fuse(model)
    assert not proved_with(model, fused, "b")


@pytest.mark.parametrize("body", BODIES)
def test_another_gamma_fails_the_proof(body: str) -> None:
    """gamma / 2 and codes that stay: what a move would leave without its half in the weight."""
    model = _model(body)
    fused = fuse(model)
    assert not proved_with(model, fused, "gamma", lambda gamma: gamma / 2)


def _first_changed(array: Array) -> Array:
    array.flat[0] += 1
    return array


@pytest.mark.parametrize(("body", "name"), [("codes of a product", "codes"), ("blocks", "parts")])
def test_another_code_or_scale_fails_the_proof(body: str, name: str) -> None:
    model = _model(body)
    fused = fuse(model)
    assert not proved_with(model, fused, name, _first_changed)


def test_the_bias_of_another_scale_fails_the_proof() -> None:
    """Codes that two layers share, each with scales of its own: each bias has its own W beta."""
    body = (
        f"m = {BLOCKS}(n, codes, scales) y0 = Add(m, b) "
        f"k = {BLOCKS}(n, codes, others) c = Add(k, d) y = Sub(y0, c)"
    )
    model = _model(body, others=RNG.uniform(0.01, 0.1, (3, 2)))
    fused = rightly(model, (0, 1))
    kept = fused.model.graph.initializers["b"].const_value
    assert kept is not None
    assert not proved_with(model, fused, "d", lambda _: kept.numpy())


def test_a_shared_bias_is_stored_for_each_layer() -> None:
    body = (
        f"m = {BLOCKS}(n, codes, scales) y0 = Add(m, b) "
        f"k = {BLOCKS}(n, codes, others) c = Add(k, b) y = Sub(y0, c)"
    )
    model = _model(body, others=RNG.uniform(0.01, 0.1, (3, 2)))
    rightly(model, (0, 1))


def test_a_plan_is_read_back_equal() -> None:
    plan = Plan(fusions=fuse(_model("blocks")).decision.fusions)
    assert Plan.from_json(plan.to_json()) == plan
    assert all(reader.weight.fixed for fusion in plan.fusions for reader in fusion.readers)
