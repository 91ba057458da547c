"""A false row of the operator table deceives the planner; the proof refuses what comes of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from onnxfold.operators import table
from onnxfold.operators.row import Elements, Operator
from tests.passes.affine.affine_graphs import error, fuse, graph, weights
from tests.soundness.checking import Settings, check, settings_of
from tests.soundness.random_graphs import sampled_graph

_SEEDS = 12
_WRONG = 1e-6
_ROWS = [row for row in table.ROWS.values() if row.family is not None and row.elements.value]


def _cumsum() -> Operator:
    return table.ROWS["", "CumSum"]


def test_a_shift_does_not_pass_a_cumulative_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the row false, gamma and beta move behind it, and beta is then added up."""
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


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: ".".join(filter(None, row.key)))
@pytest.mark.parametrize("level", [Elements.PERMUTES, Elements.AVERAGES], ids=lambda x: x.name)
def test_no_wrong_model_of_a_false_level_is_proved(
    row: Operator, level: Elements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the planner makes of it: where the numbers are wrong, the proof says so."""
    false = replace(row, elements=level, unless=(), no_shift="")
    monkeypatch.setitem(table.ROWS, row.key, false)
    for seed in range(_SEEDS):
        rng = random.Random(seed)  # noqa: S311 # no secret
        drawn = replace(settings_of(seed), allow_split_bytes=1 << 20, exclude=None)
        settings: Settings = replace(drawn, fuse_affine=True)
        outcome = check(sampled_graph(rng, row.key), settings)
        assert not (outcome.failure or "").startswith("numbers"), seed
