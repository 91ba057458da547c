"""What must see a value with its scale: forcing a scale past it breaks model and proof."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.passes.deferral.plan import DeferralPlan
from tests.graphs import Array, graph, weights
from tests.passes.deferral.deferral_graphs import (
    ALL,
    attention,
    defer,
    feed_forward,
    forced,
    rms_graph,
    rms_norm,
)


@pytest.mark.parametrize(
    ("allowed", "forbidden"),
    [
        ("Neg(h)", "Add(h, b)"),
        ("Relu(h)", "Mul(h, e) e = Sigmoid(h)"),
        ("Neg(h)", "Add(h, r) r = MatMul(x, R)"),
        ("Relu(h)", "Mul(h, e) d = Erf(h) e = Add(d, eps)"),
        ("Relu(h)", "Softmax<axis=-1>(h)"),
        ("Relu(h)", "Tanh(h)"),
        ("Neg(h)", "Add(h, d) d = Mul(h, h)"),
    ],
    ids=["a bias", "SiLU", "a sum", "GELU", "Softmax", "Tanh", "a sum with another degree"],
)
def test_a_forbidden_crossing_breaks_the_model_and_its_proof(allowed: str, forbidden: str) -> None:
    right, wrong = _crossing(allowed), _crossing(forbidden)
    plan = defer(right).plan
    assert "a" in {held.value for held in plan.norms[0].held}
    assert "a" not in {held.value for held in defer(wrong).plan.norms[0].held}
    forced(wrong, plan).assert_broken()


def _crossing(middle: str) -> ir.Model:
    """a = f(h) between two layers; the other operands of f are computed before it."""
    f, _, rest = middle.partition(") ")
    constants: dict[str, tuple[int, ...]] = {"W": (6, 12), "V": (12, 3)}
    constants |= {"b": (12,)} if "b" in f else {}
    constants |= {"R": (6, 12)} if rest.endswith("R)") else {}
    body = f"h = MatMul(n, W) {rest} a = {f.removesuffix(')')}) y = MatMul(a, V)"
    return rms_graph(body, **constants)


def test_without_the_row_epsilon_the_model_and_the_proof_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm that keeps its epsilon after a deferred one computes a different result."""
    found = defer(attention(second=1e-1))
    (norm,) = found.plan.norms
    cancelled = tuple((output, replace(scale, degree=2)) for output, scale in norm.cancelled)
    forced(
        attention(second=1e-1), DeferralPlan((replace(norm, cancelled=cancelled),))
    ).assert_broken(1e-6)


# What reads the norm, the results, and the reason why it stays.
REFUSED: dict[str, tuple[str, str, str]] = {
    "a sum reads it as well": (
        "h = MatMul(n, W6) z = Add(n, x) y = Add(h, z)", "double[B,T,6] y", "exact_reader"
    ),
    "an output": ("y = MatMul(n, W)", "double[B,T,3] y, double[B,T,6] n", "exact_reader"),
    "no layer reads it": ("y = Relu(n)", "double[B,T,6] y", "not_worth"),
    "scores of attention": (
        "t = Transpose<perm=[0,2,1]>(n) s = MatMul(n, t) y = Softmax<axis=-1>(s)",
        "double[B,T,T] y", "exact_reader",
    ),
    "a weight from the left mixes the rows": (
        "y = MatMul(L, n)", "double[B,5,6] y", "exact_reader"
    ),
    "a bias with a factor": (
        "f = Reshape(n, flat6) y = Gemm<beta=0.5>(f, W, c)", "double[N,3] y", "not_worth"
    ),
    "[B, T, 6] as [B, 6 T] mixes the rows": (
        "t = Transpose<perm=[0,2,1]>(n) f = Reshape(t, flat3) y = MatMul(f, V)",
        "double[N,4] y", "not_worth",
    ),
}  # fmt: skip
_READ: dict[str, tuple[int, ...] | Array] = {
    "W6": (6, 6), "W": (6, 3), "L": (5, 3), "c": (3,), "V": (3, 4),
    "flat6": np.array([-1, 6]), "flat3": np.array([-1, 3]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_norm_stays_whose_scale_cannot_go_past_its_readers(case: str) -> None:
    body, outputs, reason = REFUSED[case]
    found = defer(rms_graph(body, outputs=outputs, **_READ))
    assert found.plan.empty
    assert found.reasons == {"n": reason}


def test_rows_are_followed_through_merged_axes() -> None:
    """[B, T, 6] as [B T, 6] keeps rows together."""
    kept = rms_graph(
        "f = Reshape(n, flat) y = MatMul(f, W)",
        outputs="double[N,3] y",
        flat=np.array([-1, 6]),
        W=(6, 3),
    )
    found = defer(kept)
    assert len(found.plan.norms) == 1
    found.assert_right()


def test_rows_are_not_followed_into_sizes_that_only_a_caller_knows() -> None:
    """[B, T, 6] as [?, ?, 6]: the first size may be B T, or different."""
    body = (
        "c = Cast<to=7>(x) m = ReduceMax<keepdims=0>(c, rows) t = Slice(m, zero, two) "
        "s = Concat<axis=0>(t, six) "
        "f = Reshape(n, s) y = MatMul(f, W)"
    )
    numbers = {"six": [6], "rows": [0, 1], "zero": [0], "two": [2]}
    made = {name: np.array(each) for name, each in numbers.items()}
    found = defer(rms_graph(body, outputs="double[M,N,3] y", W=(6, 3), **made))
    assert found.plan.norms == ()


def test_excluded_norms_stay() -> None:
    model = feed_forward("Relu(h)")
    settings = replace(ALL, exclude=".")
    found = defer(model, settings)
    assert found.plan.empty
    assert found.reasons == {"n": "excluded"}


def test_a_gamma_that_stays_keeps_its_norm() -> None:
    """No constant, so that no weight can take it."""
    made = {**weights(W=(6, 3)), "eps": np.array(1e-5), "last": np.array([-1])}
    body = rms_norm("x", "r", 18) + "n = Mul(r, g) y = MatMul(n, W)"
    model = graph(body, "double[B,T,6] x, double[6] g", "double[B,T,3] y", made)
    assert defer(model).plan.empty
