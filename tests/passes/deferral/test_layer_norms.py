"""LayerNorms that do not fold, deferred: their readers are centered, and the mean stays in x."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.errors import UsageError
from onnxfold.passes.deferral.plan import DeferralPlan
from tests.graphs import Array, graph, weights
from tests.passes.deferral.deferral_graphs import MEANS, defer, forced

NORM = "n = LayerNormalization<axis=-1>(x, gamma, beta) "
FEED_FORWARD = NORM + "h = MatMul(n, W) c = Add(h, b) a = Relu(c) y = MatMul(a, V)"
MADE = weights(gamma=(6,), beta=(6,), W=(6, 12), b=(12,), V=(12, 3))
FLAT = {"flat": np.array([-1, 6])}


def layer_norm_model(body: str = FEED_FORWARD, dtype: str = "double", **more: Array) -> ir.Model:
    made = {
        name: a for name, a in (MADE | more).items() if f" {name})" in body or f" {name}," in body
    }
    if dtype == "float":
        made = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in made.items()}
    wide = "M" if "flat" in more else "B,T"
    return graph(body, f"{dtype}[B,T,6] x", f"{dtype}[{wide},3] y", made)


@pytest.mark.parametrize(
    "body",
    [
        FEED_FORWARD,
        NORM.replace(", beta", "") + "y = MatMul(n, K)",
        NORM + "f = Reshape(n, flat) y = Gemm<transB=1>(f, L, k)",
    ],
    ids=["a bias behind", "no bias", "merged rows"],
)
def test_its_readers_are_centred(body: str) -> None:
    more = weights(K=(6, 3), L=(3, 6), k=(3,)) | (FLAT if "flat" in body else {})
    found = defer(layer_norm_model(body, **more), MEANS)
    (norm,) = found.plan.norms
    assert len(norm.centred) == 1
    found.assert_right()
    weight = next(value for name, value in found.after.graph.initializers.items()
                  if name.endswith(".centred"))  # fmt: skip
    assert weight.const_value is not None
    means = weight.const_value.numpy().mean(axis=1 if "L" in (weight.name or "") else 0)
    assert np.abs(means).max() <= 1e-15


def test_a_norm_that_keeps_its_mean_is_deferred_where_that_is_asked_for() -> None:
    assert defer(layer_norm_model()).reasons == {"n": "rounds_more"}
    with pytest.raises(UsageError, match="defer='all'"):
        onnxfold.optimize(layer_norm_model(), defer_means=True)
    kept = onnxfold.optimize(layer_norm_model(), defer="all")
    (row,) = kept.report["inspect"]["norms"]
    assert (row["deferral"], row["deferral_reason"]["code"]) == (None, "rounds_more")


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_the_check_draws_rows_on_which_a_mean_costs_too_much(epsilon: float) -> None:
    """The norm reads what is given to the model, which may be constant."""
    norm = NORM.replace("gamma, beta", "ones").replace("axis=-1", f"axis=-1, epsilon={epsilon:g}")
    made = {"ones": np.ones(6), **weights(K=(6, 3))}
    model = layer_norm_model(norm + "y = MatMul(n, K)", "float", **made)
    proved = onnxfold.optimize(model, defer="all", defer_means=True, check=0)
    (row,) = proved.report["inspect"]["norms"]
    bound = row["deferral"]["bound"]
    assert bound["of_constant_row"] == pytest.approx(bound["factor"] / epsilon**0.5, rel=1e-3)
    assert "|c| for a row of one number c" in bound["sentence"]
    checked = onnxfold.optimize(model, defer="all", defer_means=True)
    assert [left["name"] for left in checked.report["left_out"]] == ["deferral of LayerNorms"]
    assert not checked.plan.deferred


def _numbers(model: ir.Model, x: Array) -> tuple[Array, Array]:
    """Return the outputs in float64 and in float32."""
    precisions = (Precision.FLOAT64, Precision.NATIVE)
    truth, rounded = (run(model, {"x": x}, precision=precision)["y"] for precision in precisions)
    return truth, rounded


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
@pytest.mark.parametrize("row", ["constant", "shifted", "zero"])
def test_with_its_mean_a_deferred_norm_is_wrong_on_some_rows(row: str, epsilon: float) -> None:
    """Forced, it errs by its bound; `all` leaves it, and errs as the norm does."""
    norm = NORM.replace("gamma, beta", "ones").replace("axis=-1", f"axis=-1, epsilon={epsilon:g}")
    made = {"ones": np.ones(64), **weights(K=(64, 64))}
    made = {name: array.astype(np.float32) for name, array in made.items()}
    body, kind = norm + "y = MatMul(n, K)", "float[B,64] {}"
    model = graph(body, kind.format("x"), kind.format("y"), made)
    drawn = np.random.default_rng(0).standard_normal((4, 64))
    rows = {"constant": np.ones((4, 64)), "shifted": drawn + 1e3, "zero": 0 * drawn}
    x = rows[row].astype(np.float32)
    left = onnxfold.optimize(model, defer="all")
    truth, kept = _numbers(left.model, x)
    forced_model = defer(model, MEANS)
    _, deferred = _numbers(forced_model.after, x)
    least = 1e-6 * (1 + np.abs(truth).max())
    error, most = np.abs(kept - truth).max(), np.abs(deferred - truth).max()
    (norm_plan,) = forced_model.plan.norms
    assert norm_plan.bound is not None
    exact = x.astype(np.float64)
    mean, var = exact.mean(axis=-1), exact.var(axis=-1)
    growth = np.sqrt((mean**2 + var) / (var + epsilon)).max()
    assert most <= norm_plan.bound.factor * growth + least
    assert row == "zero" or most > 4 * max(error, least)


def test_without_the_centring_the_model_and_its_proof_break() -> None:
    model = layer_norm_model()
    norm = defer(model, MEANS).norm
    forced(model, DeferralPlan((replace(norm, centred=()),))).assert_broken()


def test_a_weight_that_others_read_is_copied_or_left() -> None:
    body = NORM + "h = MatMul(n, K) z = MatMul(x, K) y = Add(h, z)"
    plain = body.replace("x, gamma, beta", "x, ones")
    more = weights(K=(6, 3)) | {"ones": np.ones(6)}
    found = defer(layer_norm_model(plain, **more), MEANS)
    ((reader,),) = (norm.centred for norm in found.plan.norms)
    assert reader.nbytes == 6 * 3 * 8
    found.assert_right()
    for limit, reasons in ((6 * 3 * 8, {}), (6 * 3 * 8 - 1, {"n": "shared_weight"})):
        found = defer(layer_norm_model(plain, **more), replace(MEANS, allow_split=limit))
        assert found.reasons == reasons


def test_a_centred_copy_for_a_reader_of_something_else_breaks_the_model_and_its_proof() -> None:
    """x has a mean, which x K sees."""
    body = NORM.replace("gamma, beta", "ones") + "h = MatMul(n, K) z = MatMul(x, K) y = Add(h, z)"
    model = layer_norm_model(body, ones=np.ones(6), **weights(K=(6, 3)))
    norm = defer(model, MEANS).norm
    (reader,) = norm.centred
    other = replace(reader, reader=replace(reader.reader, node="z"))
    forced(model, DeferralPlan((replace(norm, centred=(reader, other)),))).assert_broken()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (NORM.replace(", beta", "") + "r = Relu(n) y = MatMul(r, K)", "varies_along_fiber"),
        (NORM.replace("gamma, beta", "ones") + "r = Relu(n) y = MatMul(r, K)", "exact_reader"),
        (NORM.replace("gamma, beta", "ones") + "k = Add(x, x) y = MatMul(n, k)", "exact_reader"),
    ],
    ids=["a gamma that stays", "a ReLU", "a weight that is computed"],
)
def test_other_readers_keep_it(body: str, reason: str) -> None:
    model = layer_norm_model(body, **weights(K=(6, 3)), ones=np.ones(6))
    if "k = Add" in body:
        model = graph(body, "double[6,6] x", "double[6,6] y", {"ones": np.ones(6)})
    assert defer(model, MEANS).reasons == {"n": reason}


def test_an_rms_norm_of_its_result_would_see_the_mean() -> None:
    body = NORM.replace("gamma, beta", "ones")
    body += "h = MatMul(n, K) r = RMSNormalization<axis=-1>(n, ones) y = Add(h, r)"
    made = weights(K=(6, 6)) | {"ones": np.ones(6)}
    model = graph(body, "double[B,T,6] x", "double[B,T,6] y", made, opset=23)
    assert defer(model, MEANS).reasons["n"] == "has_mean"


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e3])
def test_the_rounding_that_a_mean_costs_has_the_bound_that_is_given(mean: float) -> None:
    body = NORM.replace("gamma, beta", "ones") + "y = MatMul(n, K)"
    found = defer(layer_norm_model(body, "float", ones=np.ones(6), **weights(K=(6, 3))), MEANS)
    x = (np.random.default_rng(0).standard_normal((4, 50, 6)) + mean).astype(np.float32)
    truth = run(found.before, {"x": x}, precision=Precision.FLOAT64)["y"]
    rounded = run(found.after, {"x": x}, precision=Precision.NATIVE)["y"]
    K = weights(K=(6, 3))["K"].astype(np.float32).astype(np.float64)
    exact = x.astype(np.float64)
    s = 1 / np.sqrt(exact.var(axis=-1, keepdims=True) + 1e-5)
    bound = (6 + 4) * 2**-24 * s * (np.abs(exact) @ np.abs(K - K.mean(axis=0)))
    # s itself: the mean of d numbers, d squares and a root, of what is exact but for the mean.
    kappa = np.sqrt(1 + exact.mean(axis=-1, keepdims=True) ** 2 / exact.var(axis=-1, keepdims=True))
    bound += 2**-24 * (6 + 4 + 6 * kappa) * np.abs(truth)
    assert np.all(np.abs(rounded - truth) <= bound)


def test_a_mean_that_costs_too_much_keeps_the_norm(tmp_path: Path) -> None:
    body = NORM.replace("gamma, beta", "ones") + "y = MatMul(n, K)"
    model = layer_norm_model(body, "float", ones=np.ones(6), **weights(K=(6, 3)))
    # Integers whose mean 2^20 is exact in the norm and rounded in a product: four times the noise
    # of ONNX Runtime, which takes squares of x.
    half = np.random.default_rng(0).integers(1, 9, (2, 5, 3))
    x = 2.0**20 + np.concatenate([half, -half], axis=-1)
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    given = (f"x:{tmp_path / 'x.npy'}",)
    fed = onnxfold.optimize(model, defer="all", defer_means=True, inputs=given, noise_limit=1.5)
    assert [left["name"] for left in fed.report["left_out"]] == ["deferral of LayerNorms"]
    (row,) = fed.report["inspect"]["norms"]
    assert row["deferral_reason"]["code"] == "not_proved"
    np.save(tmp_path / "x.npy", half.repeat(2, axis=-1).astype(np.float32) - 4)
    usual = onnxfold.optimize(model, defer="all", defer_means=True, inputs=given)
    assert "left_out" not in usual.report
    (row,) = usual.report["inspect"]["norms"]
    assert row["action"] == "deferred"
    assert not row["foldable"]
    assert row["deferral"]["centred"] == ["y"]
    summary = usual.report["inspect"]["summary"]
    assert (summary["deferred"], summary["deferred_layer_norms"], summary["foldable"]) == (1, 1, 0)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_second_run_changes_nothing(target: str) -> None:
    once = onnxfold.optimize(
        layer_norm_model(), target=target, defer="all", defer_means=True, check=0
    )
    assert "left_out" not in once.report
    assert once.changed
    again = onnxfold.optimize(once.model, target=target, defer="all", defer_means=True, check=0)
    assert not again.changed


def test_a_norm_of_a_constant_stays_since_runtimes_compute_it_once() -> None:
    """The graph computes the constant C, whose shape is undeclared, in addition to x."""
    body = "n = LayerNormalization<axis=-1>(C, gamma) h = MatMul(n, K) y = Add(h, x)"
    made = weights(C=(4, 5, 6), K=(6, 3)) | {"gamma": np.ones(6)}
    model = graph(body, "double[4,5,3] x", "double[4,5,3] y, C", made)
    found = defer(model, replace(MEANS, allow_split=0))
    assert not found.plan.norms
    ((_, refusal),) = found.plan.refusals
    assert "reads constants, and runtimes compute it once" in refusal.sentence


def test_a_weight_of_another_type_than_its_activations_is_not_centred() -> None:
    """Centred, it would be rounded to its own 11 bits, where its reader computes with 53."""
    model = layer_norm_model(NORM.replace(", beta", "") + "y = MatMul(n, K)", **weights(K=(6, 3)))
    half = model.graph.initializers["K"]
    assert half.const_value is not None
    half.const_value = ir.tensor(half.const_value.numpy().astype(np.float16), name="K")
    half.dtype = ir.DataType.FLOAT16
    assert defer(model, MEANS).reasons == {"n": "unsupported_type"}
