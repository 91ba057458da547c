"""Weights of 16 bits that a factor would leave with few bits, or none: they stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.passes.affine import absorptions as affine
from onnxfold.passes.deferral import readers as deferral
from onnxfold.passes.scales import decide as scales
from tests.graphs import Array, graph

WIDTH = 64
LAYER = "h = MatMul(x, W) a = Add(h, b) y = Mul(a, ls)"
NORM = "n = LayerNormalization<axis=-1>(x, gamma) y = MatMul(n, W)"
BIASED = "n = LayerNormalization<axis=-1>(x, gamma, beta) h = MatMul(n, W) y = Add(h, b)"
FORCED = (scales, affine, deferral)


def _model(body: str, dtype: type = np.float16, opset: int = 17, **constants: Array) -> ir.Model:
    rng = np.random.default_rng(0)
    made = {"W": rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5, "b": rng.standard_normal(WIDTH)}
    made = {name: array for name, array in made.items() if f"{name})" in body} | constants
    typed = {name: array.astype(dtype) for name, array in made.items()}
    kind = {np.float16: "float16", np.float32: "float", ml_dtypes.bfloat16: "bfloat16"}[dtype]
    return graph(body, f"{kind}[B,{WIDTH}] x", f"{kind}[B,{WIDTH}] y", typed, opset=opset)


def _rows() -> Iterator[tuple[str, Array]]:
    drawn = np.random.default_rng(1).standard_normal((16, WIDTH))
    yield from (("usual", drawn), ("shifted", drawn + 100), ("constant", np.full((4, WIDTH), 3.0)))


def _ratio(before: ir.Model, after: ir.Model) -> float:
    """Return how many times the rewritten model's error exceeds the original's.

    In the worst column for the worst rows; noise is at least one rounding.
    """
    worst = 0.0
    for _, rows in _rows():
        x = rows.astype(np.float16)
        truth = run(before, {"x": x}, precision=Precision.FLOAT64)["y"]
        old, new = (
            _rms(run(model, {"x": x}, precision=Precision.NATIVE)["y"] - truth)
            for model in (before, after)
        )
        noise = np.maximum(old, 2.0**-11 * _rms(truth))
        worst = max(worst, float(np.max(new / np.maximum(noise, 2.0**-26))))
    return worst


def _rms(errors: Array) -> Array:
    return np.sqrt(np.mean(np.square(errors.astype(np.float64)), axis=0))


def _force(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in FORCED:
        monkeypatch.setattr(module, "refuse_few_bits", lambda *_: None)


CASES = {
    "a layer scale": (LAYER, {"ls": np.full(WIDTH, 1e-6)}),
    "a layer scale with one small number": (LAYER, {"ls": np.where(np.arange(WIDTH), 1, 1e-6)}),
    "a number": (LAYER, {"ls": np.array(1e-6)}),
    "a quotient": (LAYER.replace("y = Mul", "y = Div"), {"ls": np.full(WIDTH, 6e4)}),
    "a gamma": (NORM, {"gamma": np.full(WIDTH, 1e-6)}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_factor_that_leaves_few_bits_stays_and_forced_it_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, constants = CASES[name]
    model = _model(body, **constants)
    left = onnxfold.optimize(model, check=0)
    assert _ratio(model, left.model) <= 1.5
    report = left.report["inspect"]
    if name == "a gamma":
        (reason,) = [row["affine_reason"] for row in report["norms"]]
    else:
        ((output, reason),) = [(kept["output"], kept["reason"]) for kept in report["scales_kept"]]
        assert output == "y"
    assert (reason["code"], reason["nodes"]) == ("rounds_more", ["W"])
    _force(monkeypatch)
    forced = onnxfold.optimize(model, check=0)
    assert forced.plan.scales or forced.plan.fusions
    assert _ratio(model, forced.model) > 4


def test_two_factors_that_leave_few_bits_together_are_one_too_many() -> None:
    small = {name: np.full(WIDTH, 1e-3) for name in ("s", "t")}
    model = _model("h = MatMul(x, W) u = Mul(h, s) a = Add(u, b) y = Mul(a, t)", **small)
    result = onnxfold.optimize(model, check=0)
    assert [scale.output for scale in result.plan.scales] == ["u"]
    assert [kept["output"] for kept in result.report["inspect"]["scales_kept"]] == ["y"]
    assert _ratio(model, result.model) <= 4


def test_a_gamma_counts_with_the_scale_that_the_weight_has_taken() -> None:
    body = "n = LayerNormalization<axis=-1>(x, gamma) h = MatMul(n, W) y = Mul(h, s)"
    model = _model(body, gamma=np.full(WIDTH, 3e-3), s=np.full(WIDTH, 3e-3))
    result = onnxfold.optimize(model, check=0)
    assert len(result.plan.scales) == 1
    (row,) = result.report["inspect"]["norms"]
    assert (row["gamma_fused"], row["affine_reason"]["code"]) == (False, "rounds_more")


def test_a_weight_that_would_become_infinite_stays() -> None:
    model = _model(LAYER, W=np.full((WIDTH, WIDTH), 100.0), ls=np.full(WIDTH, 6e4))
    result = onnxfold.optimize(model, check=0)
    assert not result.plan.scales
    assert result.report["inspect"]["scales_kept"][0]["reason"]["code"] == "rounds_more"


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(np.float16, 2.0**-3), (np.float16, 0.01), (np.float32, 1e-6), (ml_dtypes.bfloat16, 1e-6)],
    ids=["a power of two", "a hundredth", "float32", "bfloat16"],
)
def test_a_factor_that_leaves_all_bits_moves(dtype: type, factor: float) -> None:
    model = _model(LAYER, dtype, ls=np.full(WIDTH, factor))
    result = onnxfold.optimize(model, check=0)
    assert len(result.plan.scales) == 1
    assert result.report["inspect"]["scales_kept"] == []


def test_a_norm_whose_readers_would_be_halved_into_few_bits_is_not_deferred() -> None:
    """One row of large numbers asks for 2^-12, which leaves nothing of the other columns."""
    W = np.full((WIDTH, WIDTH), 0.0027)
    W[:, 0] = 60.0
    body = "n = RMSNormalization<axis=-1>(x, ones) y = MatMul(n, W)"
    model = _model(body, opset=23, W=W, ones=np.ones(WIDTH))
    result = onnxfold.optimize(model, defer="all", check=0)
    (row,) = result.report["inspect"]["norms"]
    assert row["deferral_reason"]["code"] == "rounds_more"
    small = _model(body, opset=23, ones=np.ones(WIDTH))
    assert len(onnxfold.optimize(small, defer="all", check=0).plan.deferred) == 1


_RISING, _ONES = np.linspace(0.05, 0.2, WIDTH * WIDTH).reshape(WIDTH, WIDTH), np.ones(WIDTH)
BIASES = {
    "subnormal": {"beta": _ONES * 1e-7, "b": _ONES * 0},
    "of one direction": {"gamma": _ONES * 0.01, "beta": _ONES * 10, "W": _RISING, "b": _ONES * 0},
    "of large numbers": {"beta": 100 * np.cos(np.arange(WIDTH)), "b": _ONES * 0},
    "beside a large bias": {"beta": _ONES, "b": 1000 * np.cos(np.arange(WIDTH))},
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_that_takes_beta_errs_no_more_than_what_it_is_added_to(name: str) -> None:
    model = _model(BIASED, **({"gamma": np.linspace(0.5, 1.5, WIDTH)} | BIASES[name]))
    result = onnxfold.optimize(model, check=0)
    (fusion,) = result.plan.fusions
    assert fusion.beta
    assert _ratio(model, result.model) <= 1.5


def test_a_bias_that_would_become_infinite_is_left_out() -> None:
    wide = {"W": np.full((WIDTH, WIDTH), 10.0), "beta": np.full(WIDTH, 200.0)}
    model = _model(BIASED, gamma=_ONES, b=_ONES * 0, **wide)
    result = onnxfold.optimize(model, check=0)
    assert not result.plan.fusions
    assert "leave the range of float16" in result.report["left_out"][0]["reason"]
