"""How far regions reach in which a mean is shown to be 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxfold
from onnxfold.proof.neighbourhood import Neighbourhood
from tests.graphs import graph

_DRAW = np.random.default_rng(0).standard_normal
_WEIGHTS = {"V": _DRAW((4, 6)), "W": _DRAW((4, 6)), "gamma": _DRAW(6), "last": np.array([-1])}


def _depths(patch: pytest.MonkeyPatch, body: str, x: str) -> set[int]:
    """Fold the one norm of a graph, and return how far the regions of single values reached."""
    asked = set[int]()
    alone = Neighbourhood.alone

    def noted(self: Neighbourhood, value: Any, depth: int, **chosen: Any) -> Any:
        asked.add(depth)
        return alone(self, value, depth, **chosen)

    patch.setattr(Neighbourhood, "alone", noted)
    result = onnxfold.optimize(graph(body, x, "double[2,3,6] y", _WEIGHTS))
    assert len(result.plan.folds) == 1
    assert result.report["proof"]["passed"]
    return asked


def test_means_that_follow_node_by_node_need_no_wider_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = "v = MatMul(x, V) w = MatMul(x, W) a = Add(v, w) y = LayerNormalization(a, gamma)"
    assert _depths(monkeypatch, body, "double[2,3,4] x") == {1}


def test_a_mean_that_two_nodes_take_away_is_shown_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sub alone keeps a mean of 0 of both operands, which these have not."""
    body = (
        "m = ReduceMean<keepdims=1>(z, last) d = Sub(z, m) w = MatMul(x, W) a = Add(d, w) "
        "y = LayerNormalization(a, gamma)"
    )
    assert 2 in _depths(monkeypatch, body, "double[2,3,4] x, double[2,3,6] z")


def test_where_one_factor_has_no_mean_of_0_the_other_is_looked_at() -> None:
    """Either would do; the scale comes first, and too many nodes lie between to see both norms."""
    spelled = (
        "m = ReduceMean<keepdims=1>(x, last) d = Sub(x, m) s = Mul(d, d) "
        "v = ReduceMean<keepdims=1>(s, last) e = Add(v, epsilon) q = Sqrt(e) r = Reciprocal(q) "
        "n0 = Mul(r, d) "
    )
    mixed = " ".join(f"n{k + 1} = MatMul(z, n{k})" for k in range(10))
    body = f"{spelled} {mixed} y = LayerNormalization(n10, gamma)"
    made = _WEIGHTS | {"epsilon": np.array(1e-3)}
    inputs = "double[2,3,6] x, double[2,3,3] z"
    result = onnxfold.optimize(graph(body, inputs, "double[2,3,6] y", made))
    assert len(result.plan.folds) == 1
    assert result.report["proof"]["passed"]
