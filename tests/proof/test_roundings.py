"""Rows that a norm is hurt by, in the types of the model: exact numbers may be rounded too much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.proof import roundings
from tests.graphs import Array, graph
from tests.passes.deferral.deferral_graphs import MEANS, defer, forced

WIDTH = 64
TYPES = {"float": np.float32, "float16": np.float16}


def _weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape) / WIDTH**0.5 for name, shape in shapes.items()}


def _model(body: str, kind: str, constants: dict[str, Array], opset: int = 17) -> ir.Model:
    typed = {name: array.astype(TYPES[kind]) for name, array in constants.items()}
    return graph(body, f"{kind}[B,{WIDTH}] x", f"{kind}[B,{WIDTH}] y", typed, opset=opset)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_a_deferral_with_its_mean_fails_on_constant_rows(epsilon: float) -> None:
    """Without its bound: with one, it may err as much as that says."""
    body = f"n = LayerNormalization<axis=-1, epsilon={epsilon:g}>(x, ones) y = MatMul(n, W)"
    model = _model(body, "float", {"ones": np.ones(WIDTH), **_weights(W=(WIDTH, WIDTH))})
    found = defer(model, MEANS)
    assert not found.shown.failures
    (norm,) = found.plan.norms
    broken = forced(model, DeferralPlan((replace(norm, bound=None),)))
    (failure,) = broken.shown.failures
    assert failure.startswith("on constant rows 'y' errs by ")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_deferrals_and_row_epsilons_hold_on_all_rows(kind: str, epsilon: float) -> None:
    norm = f"RMSNormalization<axis=-1, epsilon={epsilon:g}>"
    body = f"n = {norm}(x, ones) h = MatMul(n, W) r = {norm}(h, ones) y = MatMul(r, V)"
    made = {"ones": np.ones(WIDTH), **_weights(W=(WIDTH, WIDTH), V=(WIDTH, WIDTH))}
    found = defer(_model(body, kind, made, opset=23))
    assert found.plan.norms[0].cancelled
    assert not found.shown.failures


@pytest.mark.parametrize("kind", roundings.KINDS)
def test_the_rows_of_a_kind_are_so_along_any_axis(kind: str) -> None:
    drawn = roundings.Rows(0, kind).standard_normal((16, 8, 64))
    spread, mean = drawn.std(axis=(0, 1)), drawn.mean()
    assert np.all(spread > 0.5) == (kind in ("usual", "shifted"))
    assert {"usual": abs(mean) < 0.1, "constant": mean == 3, "shifted": abs(mean - 1e3) < 0.1,
            "zero": mean == 0}[kind]  # fmt: skip


def test_epsilons_whose_product_is_none_leave_the_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """1e-30 1e-30 is 0 in float32: a row of zeros would be 0 / 0, where the norms give 0."""
    norm = "RMSNormalization<axis=-1, epsilon=1e-30>"
    body = f"n = {norm}(x, ones) h = MatMul(n, W) r = {norm}(h, ones) y = MatMul(r, V)"
    made = {"ones": np.ones(WIDTH), **_weights(W=(WIDTH, WIDTH), V=(WIDTH, WIDTH))}
    model = _model(body, "float", made, opset=23)
    result = onnxfold.optimize(model, defer="all", check=0)
    assert "left_out" not in result.report
    assert all(not norm.cancelled for norm in result.plan.deferred)
    monkeypatch.setattr("onnxfold.passes.deferral.flow.keeps_epsilon", lambda *_: True)
    broken = defer(model)
    assert broken.plan.norms[0].cancelled
    assert any("zero rows" in failure for failure in broken.shown.failures)
    zeros = run(broken.after, {"x": np.zeros((1, WIDTH), np.float32)}, precision=Precision.NATIVE)
    assert not np.isfinite(zeros["y"]).all()
