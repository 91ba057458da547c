"""A stream that a mask fills with -inf: its norm is NaN there, and stays NaN."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from tests.graphs import Array, graph, weights
from tests.sessions import outputs

_FILLS: dict[str, Array] = {
    "a number": np.array(-np.inf, np.float32),
    "one per row": np.full((1, 4, 1), -np.inf, np.float32),
    "one per channel": np.full(6, -np.inf, np.float32),
}


_HUGE = np.array(-1e30, np.float32)
_ON_ITS_WAY: dict[str, tuple[str, Array]] = {
    "a cast": ("fill = Cast<to=1>(huge) ", np.array(-1e300)),
    "a cast of a number per channel": ("fill = Cast<to=1>(huge) ", np.full(6, -1e300)),
    "a product": ("fill = Mul(huge, huge) ", _HUGE),
    "a sum": ("fill = Add(huge, huge) ", np.array(-3e38, np.float32)),
    "a quotient": ("small = Reciprocal(huge) fill = Div(huge, small) ", _HUGE),
}


def _model(fill: Array, computed: str = "") -> ir.Model:
    made = {name: a.astype(np.float32) for name, a in weights(W=(6, 6), gamma=(6,)).items()}
    body = (
        f"h = MatMul(x, W) s = ReduceSum(x, last) hidden = Less(s, zero) {computed}"
        "w = Where(hidden, fill, h) "
        "y = LayerNormalization<axis=-1>(w, gamma)"
    )
    made |= {
        "huge" if computed else "fill": fill,
        "last": np.array([-1]),
        "zero": np.zeros(1, np.float32),
    }
    return graph(body, "float[B,4,6] x", "float[B,4,6] y", made)


def _stock(model: ir.Model, feeds: dict[str, Array]) -> Array:
    return outputs(ir.to_proto(model), feeds)[0]


@pytest.mark.parametrize("check", [None, 0])
@pytest.mark.parametrize("fill", _FILLS)
def test_what_is_filled_with_infinities_keeps_its_nan(fill: str, check: int | None) -> None:
    model = _model(_FILLS[fill])
    result = onnxfold.optimize(model, check=check)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)}
    with np.errstate(all="ignore"):
        before, after = (
            run(each, feeds, precision=Precision.FLOAT64)["y"] for each in (model, result.model)
        )
    hidden = feeds["x"].sum(axis=-1) < 0
    assert 0 < hidden.sum() < hidden.size
    assert np.isnan(before[hidden]).all()
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    (row,) = result.report["inspect"]["norms"]
    assert row["reason"]["code"] == "non_finite_weight"


@pytest.mark.parametrize("check", [None, 0, 2])
@pytest.mark.parametrize("way", _ON_ITS_WAY)
def test_a_fill_that_overflows_on_its_way_keeps_its_nan(way: str, check: int | None) -> None:
    """In float64 these are numbers, so that only a run in the model's own types shows the NaN."""
    computed, huge = _ON_ITS_WAY[way]
    model = _model(huge, computed)
    result = onnxfold.optimize(model, check=check)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)}
    before, after = (_stock(each, feeds) for each in (model, result.model))
    hidden = feeds["x"].sum(axis=-1) < 0
    assert 0 < hidden.sum() < hidden.size
    assert np.isnan(before[hidden]).all()
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    (row,) = result.report["inspect"]["norms"]
    assert row["reason"]["code"] == "non_finite_weight"


def test_a_computed_fill_that_stays_finite_folds() -> None:
    result = onnxfold.optimize(_model(np.array(-1e30), "fill = Cast<to=1>(huge) "))
    assert len(result.plan.folds) == 1
    assert result.verification is not None
    assert result.verification.passed


def test_a_finite_fill_folds() -> None:
    result = onnxfold.optimize(_model(np.array(-7.5, np.float32)))
    assert len(result.plan.folds) == 1
    assert result.verification is not None
    assert result.verification.passed
