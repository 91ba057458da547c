"""Long graphs cost what their length says: four times the nodes, about four times the calls."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxfold
from benchmarks.long_graphs import WIDTH, doubled, model_of_nodes, norms, quotients, sum_of

pytestmark = pytest.mark.campaign
# Calls of four times the nodes; what is done once for each model makes it less than four.
_MOST = 4.6


def _calls(model: onnx.ModelProto) -> int:
    profile = cProfile.Profile()
    profile.runcall(onnxfold.optimize, model, check=0, fold="always")
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return total


@pytest.mark.parametrize(
    ("kind", "count"),
    [("one constant", 96), ("constants", 48), ("numbers and constants", 80), ("layers", 32)],
)
def test_a_sum_of_four_times_the_parts_costs_four_times_as_much(kind: str, count: int) -> None:
    _calls(sum_of(kind, 2))  # imports
    few, many = (_calls(sum_of(kind, parts)) for parts in (count, 4 * count))
    assert many < _MOST * few


@pytest.mark.parametrize("made", [norms, quotients])
def test_four_times_the_norms_cost_four_times_as_much(
    made: Callable[[int], onnx.ModelProto],
) -> None:
    _calls(made(1))
    few, many = (_calls(made(count)) for count in (16, 64))
    assert many < _MOST * few


@pytest.mark.parametrize("options", [{}, {"target": "ort", "defer": "all"}], ids=["fold", "defer"])
def test_a_value_that_is_added_to_itself_is_walked_once(options: dict[str, str]) -> None:
    """There are 2^60 ways from the norm to the layer."""
    result = onnxfold.optimize(doubled(60), check=0, **options)
    assert result.report["inspect"]["summary"]["foldable"] == 1


def test_the_way_from_a_scale_to_softmax_is_looked_for_once() -> None:
    """Searching the whole model downstream for each product of each norm would be quadratic."""
    profile = cProfile.Profile()
    profile.runcall(onnxfold.optimize, quotients(40), check=0)
    stats: dict[tuple[str, int, str], tuple[int, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    (calls,) = [
        counts[1] for (file, _, name), counts in stats.items()
        if name == "_passes" and file.endswith("scales/decide.py")
    ] or [0]  # fmt: skip
    assert calls < 10 * 40


@pytest.mark.parametrize(("kind", "count"), [("one constant", 600), ("constants", 128)])
def test_all_constants_of_a_long_sum_become_one_and_that_is_proved(kind: str, count: int) -> None:
    result = onnxfold.optimize(sum_of(kind, count), check=0, fold="always")
    assert not result.report.get("left_out")
    assert result.report["proof"]["passed"]
    kinds = [node.op_type for node in result.model.graph.node]
    # The constant, and the epsilon of the norm that folds.
    assert kinds.count("Add") == 2
    assert result.report["inspect"]["summary"]["foldable"] == 1


@pytest.mark.parametrize("op_type", ["Mul", "Add"])
def test_products_that_overflow_together_stay(op_type: str) -> None:
    nodes = [helper.make_node("MatMul", ["x", "W"], ["t0"])]
    nodes += [helper.make_node(op_type, [f"t{i}", "c"], [f"t{i + 1}"]) for i in range(40)]
    nodes.append(helper.make_node("LayerNormalization", ["t40", "gamma"], ["y"]))
    made = {
        "W": np.eye(WIDTH, dtype=np.float32),
        "c": np.linspace(10, 2e37, WIDTH, dtype=np.float32),
        "gamma": np.ones(WIDTH, np.float32),
    }
    result = onnxfold.optimize(model_of_nodes(nodes, made), check=0)
    kept = [node.op_type for node in result.model.graph.node].count(op_type)
    assert kept >= 40
