"""A false row of the operator table deceives the planner; the proof refuses what comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfold.operators import table
from onnxfold.operators.row import Elements, Operator
from tests.graphs import graph, weights
from tests.operators.rows import name_of
from tests.operators.samplers import SAMPLERS
from tests.passes.affine.affine_graphs import error, fuse
from tests.proof.flips import flips, outcomes

_WRONG = 1e-6
_ROWS = [table.ROWS[key] for key in sorted(SAMPLERS)]
# The slow test draws 12 graphs of each facet, the suite few.
_GRAPHS, _MANY = 1, 12
# Facets in which a mistake is likeliest to move numbers, drawn oftener.
_OFTENER = ("elements PERMUTES", "elements AVERAGES", "law AlwaysZeroMean", "law NeverSeen")
_GRAPHS_OFTENER = 6


def _cumsum() -> Operator:
    return table.ROWS["", "CumSum"]


def test_a_shift_does_not_pass_a_cumulative_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the row false, gamma and beta move after it, and beta is then accumulated."""
    constants = weights(gamma=(6,), beta=(6,), W=(6, 5), b=(5,))
    model = graph(
        "axis = Constant<value = int64 {1}>() n = LayerNormalization<axis=-1>(x, gamma, beta) "
        "c = CumSum(n, axis) m = MatMul(c, W) y = Add(m, b)",
        "double[B,4,6] x",
        "double[B,4,5] y",
        constants,
    )
    right = fuse(model)
    assert error(model, right.model) < 1e-12  # float64, some hundred roundings
    false = replace(_cumsum(), elements=Elements.AVERAGES, no_shift="")
    monkeypatch.setitem(table.ROWS, false.key, false)
    wrong = fuse(model)
    assert wrong.moved == (1, 1)
    assert error(model, wrong.model) > _WRONG
    assert not wrong.proof.passed
    assert "CumSum" in wrong.proof.failures[0] or "y" in wrong.proof.failures[0]


@pytest.mark.campaign
@pytest.mark.parametrize("row", _ROWS, ids=name_of)
def test_no_wrong_model_of_a_false_facet_is_proved(row: Operator) -> None:
    """Whatever the planner decides: if the numbers are wrong, the proof fails."""
    for flip in flips(row):
        graphs = _GRAPHS_OFTENER if flip.facet in _OFTENER else _GRAPHS
        assert not outcomes(flip, graphs)["numbers"], flip.facet


@pytest.mark.slow
@pytest.mark.parametrize("row", _ROWS, ids=name_of)
def test_no_wrong_model_of_a_false_facet_is_proved_in_many_graphs(row: Operator) -> None:
    for flip in flips(row):
        assert not outcomes(flip, _MANY)["numbers"], flip.facet


@pytest.mark.campaign
def test_a_false_law_makes_the_planner_err() -> None:
    """Else the tests above would see nothing."""
    erred = sum(outcomes(flip, _MANY)["proof"] for flip in flips(_cumsum()))
    assert erred > 0
