"""Long graphs cost what their length says: four times the nodes, about four times the calls."""

from __future__ import annotations

import cProfile
import pstats

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold

_WIDTH = 8
# Calls of four times the nodes; what is done once for each model makes it less than four.
_MOST = 4.6


def _sum_of(kind: str, count: int) -> onnx.ModelProto:
    """A LayerNorm behind a sum of many parts, each a constant or a linear layer."""
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> str:
        made.setdefault(name, rng.normal(size=shape).astype(np.float32))
        return name

    nodes = [helper.make_node("MatMul", ["x", weight("W", _WIDTH, _WIDTH)], ["t0"])]
    for i in range(count):
        if kind == "one constant":
            part = weight("c", _WIDTH)
        elif kind == "constants":
            part = weight(f"c{i}", _WIDTH)
        elif kind == "numbers and constants":
            part = weight(f"c{i}", *([_WIDTH] * (i % 2)))
        else:
            part = f"e{i}"
            made_of = ["x", weight(f"W{i}", _WIDTH, _WIDTH)]
            nodes.append(helper.make_node("MatMul", made_of, [part]))
        nodes.append(helper.make_node("Add", [f"t{i}", part], [f"t{i + 1}"]))
    nodes.append(helper.make_node("LayerNormalization", [f"t{count}", "gamma"], ["y"]))
    made["gamma"] = np.ones(_WIDTH, np.float32)
    return _model(nodes, made)


def _blocks(count: int) -> onnx.ModelProto:
    """Pre-LN blocks of LayerNorm, layer, Relu and layer."""
    rng = np.random.default_rng(0)
    made = {"W": rng.normal(size=(_WIDTH, _WIDTH)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "W"], ["t0"])]
    for i in range(count):
        for name in ("g", "b", "a", "z"):
            made[f"{name}{i}"] = rng.normal(size=_WIDTH).astype(np.float32)
        for name in ("A", "Z"):
            made[f"{name}{i}"] = rng.normal(size=(_WIDTH, _WIDTH)).astype(np.float32) * 0.3
        nodes += [
            helper.make_node("LayerNormalization", [f"t{i}", f"g{i}", f"b{i}"], [f"n{i}"]),
            helper.make_node("MatMul", [f"n{i}", f"A{i}"], [f"p{i}"]),
            helper.make_node("Add", [f"p{i}", f"a{i}"], [f"q{i}"]),
            helper.make_node("Relu", [f"q{i}"], [f"r{i}"]),
            helper.make_node("MatMul", [f"r{i}", f"Z{i}"], [f"s{i}"]),
            helper.make_node("Add", [f"s{i}", f"z{i}"], [f"u{i}"]),
            helper.make_node("Add", [f"t{i}", f"u{i}"], [f"t{i + 1}"]),
        ]
    made["gamma"] = np.ones(_WIDTH, np.float32)
    nodes.append(helper.make_node("LayerNormalization", [f"t{count}", "gamma"], ["y"]))
    return _model(nodes, made)


def _model(nodes: list[onnx.NodeProto], made: dict[str, np.ndarray]) -> onnx.ModelProto:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", _WIDTH]) for name in "xy"
    )
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in made.items()]
    graph = helper.make_graph(nodes, "long", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _calls(model: onnx.ModelProto) -> int:
    profile = cProfile.Profile()
    profile.runcall(onnxfold.optimize, model, check=0)
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return total


@pytest.mark.parametrize(
    ("kind", "count"),
    [("one constant", 96), ("constants", 48), ("numbers and constants", 80), ("layers", 32)],
)
def test_a_sum_of_four_times_the_parts_costs_four_times_as_much(kind: str, count: int) -> None:
    _calls(_sum_of(kind, 2))  # imports
    few, many = (_calls(_sum_of(kind, parts)) for parts in (count, 4 * count))
    assert many < _MOST * few


def test_four_times_the_norms_cost_four_times_as_much() -> None:
    _calls(_blocks(1))
    few, many = (_calls(_blocks(count)) for count in (12, 48))
    assert many < _MOST * few


@pytest.mark.parametrize(("kind", "count"), [("one constant", 600), ("constants", 128)])
def test_all_constants_of_a_long_sum_become_one_and_that_is_proved(kind: str, count: int) -> None:
    result = onnxfold.optimize(_sum_of(kind, count), check=0)
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
        "W": np.eye(_WIDTH, dtype=np.float32),
        "c": np.linspace(10, 2e37, _WIDTH, dtype=np.float32),
        "gamma": np.ones(_WIDTH, np.float32),
    }
    result = onnxfold.optimize(_model(nodes, made), check=0)
    kept = [node.op_type for node in result.model.graph.node].count(op_type)
    assert kept >= 40
