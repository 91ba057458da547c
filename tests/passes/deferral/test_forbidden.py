"""What must see a value with its scale: forcing a scale past it breaks model and proof."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.passes.deferral.plan import DeferralPlan
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error
from tests.passes.deferral.deferral_graphs import (
    ALL,
    Deferred,
    attention,
    defer,
    feed_forward,
    forced,
    rms_graph,
    rms_norm,
)

BOUND = 1e-12  # float64 throughout


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
    broken = forced(wrong, plan)
    assert error(broken.before, broken.after) > 1e-3
    assert broken.shown.failures


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
    broken = forced(attention(second=1e-1), DeferralPlan((replace(norm, cancelled=cancelled),)))
    assert error(broken.before, broken.after) > 1e-6
    assert broken.shown.failures


def _refused(body: str, **constants: tuple[int, ...] | Array) -> Deferred:
    outputs = str(constants.pop("outputs", "double[B,T,3] y"))
    found = defer(rms_graph(body, outputs=outputs, **constants))
    assert found.plan.empty
    return found


def test_a_norm_that_a_sum_reads_as_well_stays() -> None:
    found = _refused(
        "h = MatMul(n, W) z = Add(n, x) y = Add(h, z)", W=(6, 6), outputs="double[B,T,6] y"
    )
    assert found.reasons == {"n": "exact_reader"}


def test_a_norm_that_is_an_output_stays() -> None:
    found = _refused("y = MatMul(n, W)", W=(6, 3), outputs="double[B,T,3] y, double[B,T,6] n")
    assert found.reasons == {"n": "exact_reader"}


def test_a_norm_that_no_layer_reads_stays() -> None:
    found = _refused("y = Relu(n)", outputs="double[B,T,6] y")
    assert found.reasons == {"n": "not_worth"}


def test_attention_scores_are_not_multiplied() -> None:
    body = "t = Transpose<perm=[0,2,1]>(n) s = MatMul(n, t) y = Softmax<axis=-1>(s)"
    found = _refused(body, outputs="double[B,T,T] y")
    assert found.reasons == {"n": "exact_reader"}


def test_rows_that_a_product_adds_up_keep_their_scale() -> None:
    """From the left, a weight mixes the rows."""
    found = _refused("y = MatMul(W, n)", W=(5, 3), outputs="double[B,5,6] y")
    assert found.reasons == {"n": "exact_reader"}


def test_a_bias_with_a_factor_keeps_the_norm() -> None:
    body = "f = Reshape(n, flat) y = Gemm<beta=0.5>(f, W, c)"
    flat = np.array([-1, 6])
    found = _refused(body, outputs="double[N,3] y", W=(6, 3), c=(3,), flat=flat)
    assert found.reasons == {"n": "not_worth"}


def test_rows_are_followed_through_merged_axes_alone() -> None:
    """[B, T, 6] as [B T, 6] keeps rows together; as [B, 6 T] it does not."""
    kept = rms_graph(
        "f = Reshape(n, flat) y = MatMul(f, W)",
        outputs="double[N,3] y",
        flat=np.array([-1, 6]),
        W=(6, 3),
    )
    found = defer(kept)
    assert len(found.plan.norms) == 1
    assert error(found.before, found.after) < BOUND
    body = "t = Transpose<perm=[0,2,1]>(n) f = Reshape(t, flat) y = MatMul(f, W)"
    flat = np.array([-1, 3])
    mixed = _refused(body, outputs="double[N,4] y", flat=flat, W=(3, 4))
    assert mixed.reasons == {"n": "not_worth"}


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
