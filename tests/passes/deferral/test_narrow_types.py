"""Deferral in float16 and bfloat16."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.passes.deferral.plan import DeferralPlan, DeferredNorm
from onnxfold.passes.deferral.readers import exponent_of
from onnxfold.target import Target
from tests.graphs import graph, weights
from tests.passes.deferral.architectures import ARCHITECTURES
from tests.passes.deferral.deferral_graphs import defer, forced, rms_norm


def _layer(dtype: str, numbers: npt.DTypeLike) -> ir.Model:
    made = {name: a.astype(numbers) for name, a in weights(W=(6, 12), V=(12, 3)).items()}
    made |= {"ones": np.ones(6, numbers)}
    body = "n = RMSNormalization<axis=-1>(x, ones) h = MatMul(n, W) a = Relu(h) y = MatMul(a, V)"
    return graph(body, f"{dtype}[B,T,6] x", f"{dtype}[B,T,3] y", made, opset=23)


def _half_layer(W: npt.NDArray[np.float64], form: str = "RMSNormalization<axis=-1>") -> ir.Model:
    made = {"W": W.astype(np.float16), "ones": np.ones(len(W), np.float16)}
    text = f"n = {form}(x, ones) y = MatMul(n, W)"
    wide = f"float16[B,T,{len(W)}] x", f"float16[B,T,{W.shape[1]}] y"
    return graph(text, *wide, made, opset=23)


def _native(model: ir.Model, x: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        found = run(model, {"x": x}, precision=Precision.NATIVE)["y"]
    return found.astype(np.float64)


def _rows(width: int) -> npt.NDArray[np.float16]:
    """Zeros, small rows, rows of 1e4 and the largest numbers that there are."""
    rows = np.random.default_rng(0).standard_normal((1, 6, width))
    rows *= np.array([0, 1e-3, 1, 1e2, 1e4, 1])[:, None]
    rows[0, 5] = 65504 * np.sign(rows[0, 5])
    return np.clip(rows, -65504, 65504).astype(np.float16)


def _bound(
    x: npt.NDArray[np.float64],
    half: npt.NDArray[np.float64],
    s: npt.NDArray[np.float64],
    power: int,
) -> npt.NDArray[np.float64]:
    """d + 1 roundings of the product in float16 and one after s, and the subnormal ones.

    Of what is subnormal as many, and of the weights themselves where they are.
    """
    width = len(half)
    bound = (width + 2) * 2.0**-11 * s * (np.abs(x) @ np.abs(half))
    tiny = (width + 1 + np.abs(x).sum(axis=-1, keepdims=True)) * 2.0**-25
    return np.asarray(bound + 2.0**power * s * tiny + 2.0**-24)


@pytest.mark.parametrize("width", [6, 64])
def test_float16_stays_in_range_by_a_power_of_two(width: int) -> None:
    W = np.random.default_rng(1).standard_normal((width, 12))
    found = defer(_half_layer(W))
    (norm,) = found.plan.norms
    assert not found.shown.failures
    x, half = _rows(width), W.astype(np.float16).astype(np.float64)
    assert 2.0**norm.exponent >= np.abs(half).sum(axis=0).max()
    truth = run(found.before, {"x": x}, precision=Precision.FLOAT64)["y"]
    got = _native(found.after, x)
    assert np.isfinite(got).all()
    exact = x.astype(np.float64)
    s = 1 / np.sqrt(np.mean(exact**2, axis=-1, keepdims=True) + 1e-5)
    assert np.all(np.abs(got - truth) <= _bound(exact, half, s, norm.exponent))
    # Exact but for weights that became subnormal.
    after = run(found.after, {"x": x}, precision=Precision.FLOAT64)["y"]
    lost = np.abs(exact).sum(axis=-1, keepdims=True) * 2.0**-25 * 2.0**norm.exponent * s
    assert np.all(np.abs(after - truth) <= lost + 1e-9 * np.abs(truth).max())


def test_without_the_power_of_two_float16_overflows() -> None:
    W = np.random.default_rng(1).standard_normal((64, 12))
    model = _half_layer(W)
    norm = defer(model).norm
    broken = forced(model, DeferralPlan((replace(norm, halved=()),)))
    x = _rows(64)
    assert np.isfinite(_native(broken.before, x)).all()
    assert not np.isfinite(_native(broken.after, x)).all()


def test_weights_alone_without_the_scale_that_makes_up_for_them_break_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _half_layer(np.random.default_rng(1).standard_normal((6, 12)))
    plan = defer(model).plan
    monkeypatch.setattr(DeferredNorm, "exponent", property(lambda _: 0))
    assert forced(model, plan).shown.failures


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
def test_the_exponent_is_that_of_the_worst_row(scale: float) -> None:
    """Signs of a column: every partial sum grows."""
    W = (np.random.default_rng(2).standard_normal((200, 5)) * scale).astype(np.float16)
    exponent = exponent_of(W, 0)
    assert exponent is not None
    halved = (W * np.float64(2.0**-exponent)).astype(np.float16)
    worst = np.zeros(5, np.float16)
    for w in halved:  # in order, each sum rounded
        worst = worst + np.abs(w) * np.float16(65504)
    assert np.isfinite(worst).all()


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_weights_that_are_not_finite_have_no_exponent(number: float) -> None:
    W = np.ones((6, 12))
    W[0, 0] = number
    assert exponent_of(W, 0) is None
    assert defer(_half_layer(W)).reasons == {"n": "unsupported_type"}


def test_statistics_of_float16_become_those_of_float32() -> None:
    """The squares of a row of 1e4 overflow float16."""
    W = np.random.default_rng(1).standard_normal((6, 12)).astype(np.float16)
    made = {"W": W, "eps": np.array(1e-4, np.float16), "last": np.array([-1])}
    text = rms_norm("x", "n", 18) + "y = MatMul(n, W)"
    found = defer(graph(text, "float16[B,T,6] x", "float16[B,T,12] y", made))
    (norm,) = found.plan.norms
    assert not found.shown.failures
    x = _rows(6)
    truth = run(found.before, {"x": x}, precision=Precision.FLOAT64)["y"]
    exact, half = x.astype(np.float64), W.astype(np.float64)
    s = 1 / np.sqrt(np.mean(exact**2, axis=-1, keepdims=True) + np.float64(np.float16(1e-4)))
    bound = _bound(exact, half, s, norm.exponent)
    assert np.all(np.abs(_native(found.after, x) - truth) <= bound)
    assert not np.all(np.abs(_native(found.before, x) - truth) <= bound)


def test_means_of_float16_keep_their_norm() -> None:
    mean = _half_layer(np.ones((6, 12)), "LayerNormalization<axis=-1>")
    assert defer(mean).reasons == {"n": "unsupported_type"}


def test_float16_is_multiplied_before_a_second_layer() -> None:
    """Its result would need its own bound, and its own power of two."""
    found = defer(_layer("float16", np.float16))
    (norm,) = found.plan.norms
    assert [held.value for held in norm.multiplied] == ["h"]
    assert not found.shown.failures


@pytest.mark.parametrize(
    ("name", "target"), list(zip(("Llama", "Qwen3", "GPT-2"), Target, strict=True))
)
def test_float16_is_taken_back(name: str, target: Target) -> None:
    model = ARCHITECTURES[name].model(23, 1e-5, "float16")
    deferred = onnxfold.optimize(model, target=target, defer="all", check=None)
    back = onnxfold.optimize(deferred.model, target=target, check=0)
    assert "left_out" not in back.report
    summaries = [result.report["inspect"]["summary"] for result in (deferred, back)]
    assert summaries[1]["reinstated"] == summaries[0]["deferred"] > 0
    assert onnxfold.inspect(back.model)["deferred_before"] == []
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 5, 5)).astype(np.float16)}
    feeds |= {"p": rng.integers(0, 9, (2, 5))} if ARCHITECTURES[name].rope else {}
    a, b = (run(m, feeds, precision=Precision.FLOAT64)["y"] for m in (deferred.model, back.model))
    # One set of weights but for those that became subnormal.
    assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()


def test_bfloat16_is_rounded_once_where_the_scale_is_multiplied() -> None:
    """Range of float32: s and the product are float32, and the product is rounded as y was."""
    found = defer(_layer("bfloat16", ml_dtypes.bfloat16))
    assert len(found.plan.norms) == 1
    assert not found.shown.failures
    x = np.random.default_rng(0).standard_normal((2, 5, 6)) * 1e4
    fed = {"x": x.astype(ml_dtypes.bfloat16)}
    truth, exact = (
        run(m, fed, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
    )
    assert np.abs(truth - exact).max() <= 1e-12 * np.abs(truth).max()
    rounded = run(found.after, fed, precision=Precision.NATIVE)["y"].astype(np.float64)
    # Roundings to the nearest of 8 bits: of h, which V takes on, of a V and of the product.
    x, layers = fed["x"].astype(np.float64), weights(W=(6, 12), V=(12, 3))
    n = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    inner, outer = (layers[k].astype(ml_dtypes.bfloat16).astype(np.float64) for k in "WV")
    bound = 2**-9 * (np.maximum(n @ inner, 0) @ np.abs(outer) + 2 * np.abs(truth))
    assert np.all(np.abs(rounded - truth) <= 1.02 * bound + 1e-6 * np.abs(truth).max())
