"""Keys without a bias take gamma alone: Softmax over the keys ignores what beta adds to all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.operators.families.transfer import IGNORED
from onnxfold.passes.affine.plan import AffineFusion
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import Fused, forced, fuse

BOUND = 1e-12  # float64 throughout
SEEN = 1e-3
LAYERS = (
    "n = LayerNormalization<axis=-1>(x, gamma, beta) q0 = MatMul(n, Q) q = Add(q0, b) "
    "k = MatMul(n, K) v0 = MatMul(n, V) v = Add(v0, c) "
)
HEADS = "".join(
    f"{name}s = Reshape({name}, heads) {name}h = Transpose<perm=[{perm}]>({name}s) "
    for name, perm in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3"))
)
KEYS = f"{LAYERS} t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t) "
END = " y = MatMul(p, v)"
SHAPES = {
    "Q": (6, 6),
    "K": (6, 6),
    "V": (6, 6),
    "b": (6,),
    "c": (6,),
    "mask": (5, 5),
    "sink": (5, 1),
}

IGNORING = {
    "scores": f"{KEYS} p = Softmax<axis=-1>(s) {END}",
    "scaled and masked": f"{KEYS} m = Mul(s, half) a = Add(m, mask) p = Softmax<axis=-1>(a) {END}",
    "keys before queries": f"{LAYERS} r = Transpose<perm=[0,2,1]>(q) s = MatMul(k, r) "
    f"u = Transpose<perm=[0,2,1]>(s) p = Softmax<axis=-1>(u) {END}",
    "heads": f"{LAYERS} {HEADS} s = MatMul(qh, kh) p = Softmax(s) z = MatMul(p, vh) "
    "w = Transpose<perm=[0,2,1,3]>(z) y = Reshape(w, whole)",
    "an operator": f"{LAYERS} y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v)",
    "an operator of onnx": f"{LAYERS} y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)",
}
SEEING = {
    "softmax over queries": f"{KEYS} p = Softmax<axis=1>(s) {END}",
    "a product": f"{KEYS} m = Mul(s, mask) p = Softmax<axis=-1>(m) {END}",
    "a cap": f"{KEYS} m = Tanh(s) p = Softmax<axis=-1>(m) {END}",
    "a sink": f"{KEYS} e = Expand(sink, sizes) a = Concat<axis=-1>(s, e) r = Softmax<axis=-1>(a) "
    f"p = Slice(r, from, to, last) {END}",
    "another reader": f"{KEYS} p = Softmax<axis=-1>(s) z = MatMul(p, v) y = Add(z, k)",
    "an activation": f"{LAYERS} r = Relu(k) t = Transpose<perm=[0,2,1]>(r) s = MatMul(q, t) "
    f"p = Softmax<axis=-1>(s) {END}",
    "a capped operator": f"{LAYERS} y = Attention<q_num_heads=2, kv_num_heads=2, softcap=0.5>"
    "(q, k, v)",
    "an operator with a sink": f"{LAYERS} y, pk, pv = com.microsoft.GroupQueryAttention"
    "<num_heads=2, kv_num_heads=2, smooth_softmax=1>(q, k, v, , , lengths, total)",
    "earlier keys": f"{LAYERS} y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v, , past, past)",
}
# Rows as they are hard for norms: usual, constant, far from 0, zero, and large.
ROWS: dict[str, Callable[[Array], Array]] = {
    "usual": lambda x: x,
    "constant": lambda x: np.full_like(x, 3.0),
    "shifted": lambda x: x + 1e3,
    "zero": np.zeros_like,
    "large": lambda x: x * 1e4,
}


def _model(body: str, outputs: str = "double[B,5,6] y") -> ir.Model:
    made = weights(gamma=(6,), beta=(6,), **SHAPES) | {
        "half": np.array(0.5), "heads": np.array([0, 0, 2, 3]), "whole": np.array([0, 0, 6]),
        "sizes": np.array([2, 5, 1]), "from": np.array([0]), "to": np.array([5]),
        "last": np.array([-1]), "lengths": np.int32([4, 4]),
        "total": np.int32(5), "past": np.random.default_rng(3).standard_normal((2, 2, 3, 3)),
    }  # fmt: skip
    opset = 23 if " Attention<" in body else 17
    return graph(body, "double[B,5,6] x", outputs, made, opset)


def _error(before: ir.Model, after: ir.Model, rows: str = "usual") -> float:
    x = ROWS[rows](np.random.default_rng(0).standard_normal((2, 5, 6)))
    first, second = (run(m, {"x": x}, precision=Precision.FLOAT64) for m in (before, after))
    return max(
        float(np.max(np.abs(first[name] - second[name])) / np.max(np.abs(first[name])))
        for name in first
    )


def _forced(model: ir.Model, monkeypatch: pytest.MonkeyPatch) -> Fused:
    """Move beta although somebody sees what it adds to the keys."""
    real = type(IGNORED).of
    with monkeypatch.context() as patched:
        patched.setattr(
            type(IGNORED),
            "of",
            lambda fact, info: (lambda *_: True) if fact is IGNORED else real(fact, info),
        )
        return fuse(model)


@pytest.mark.parametrize("body", IGNORING)
def test_beta_moves_and_no_key_gets_a_bias(body: str) -> None:
    model = _model(IGNORING[body])
    fused = fuse(model)
    assert fused.moved == (1, 1)
    assert [len(reader.biases) for reader in fused.decision.fusions[0].readers] == [1, 0, 1]
    assert fused.proof.passed, fused.proof.failures
    assert max(_error(model, fused.model, rows) for rows in ROWS) < BOUND


@pytest.mark.parametrize("body", SEEING)
def test_beta_stays_where_somebody_sees_it(body: str) -> None:
    fused = fuse(_model(SEEING[body]))
    assert fused.moved == (0, 0)
    assert fused.reason == "shift_cannot_cross"


@pytest.mark.parametrize("body", SEEING)
def test_a_beta_that_somebody_sees_breaks_and_is_not_proved(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(SEEING[body])
    fused = _forced(model, monkeypatch)
    assert fused.moved == (1, 1)
    assert _error(model, fused.model) > SEEN
    assert not fused.proof.passed


def test_keys_that_are_an_output_keep_their_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = "double[B,5,6] y, double[B,5,6] k"
    model = _model(IGNORING["scores"], outputs)
    fused = fuse(model)
    assert fused.moved == (0, 0)
    wrong = _forced(model, monkeypatch)
    assert _error(model, wrong.model) > SEEN
    assert not wrong.proof.passed


def test_queries_have_no_shift_to_lose() -> None:
    """Of the scores of a query, what beta adds to the query differs from key to key."""
    body = IGNORING["scores"].replace("q0 = MatMul(n, Q) q = Add(q0, b)", "q = MatMul(n, Q)")
    assert fuse(_model(body)).moved == (0, 0)


def test_a_fold_of_other_keys_is_not_proved() -> None:
    """The proof tests the product itself: a bias that queries lack is not that of keys."""
    fusions: tuple[AffineFusion, ...] = fuse(_model(IGNORING["scores"])).decision.fusions
    swapped = (
        IGNORING["scores"]
        .replace("MatMul(q, t)", "MatMul(k, r)")
        .replace("t = Transpose<perm=[0,2,1]>(k)", "r = Transpose<perm=[0,2,1]>(q)")
    )
    model = _model(swapped)
    made = forced(model, fusions)
    assert _error(model, made.model) > SEEN
    assert not made.proof.passed


@pytest.mark.prices
def test_whispers_encoder_folds_all_norms_but_the_last() -> None:
    """Its keys have no bias; its last norm is an output, which keeps gamma and beta."""
    summary = onnxfold.inspect("tests/recipes/whisper-tiny-encoder.onnx")["summary"]
    assert (summary["layer_norms"], summary["folded"]) == (5, 4)
