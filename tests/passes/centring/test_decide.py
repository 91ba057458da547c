"""What is planned on small graphs: in place, copies, insertions, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold import model_io
from onnxfold.model_io import FileTensor
from onnxfold.options import Target
from onnxfold.passes.base import Settings
from onnxfold.passes.places import ReaderRef
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.refusal import RefusalCode
from tests.soundness.folding import Folded, evaluate, fold, relative_error

Array = npt.NDArray[Any]
C, V = 8, 64
_BOUND = 1e-10  # float64 models: rounding alone


class Graph:
    """A float64 model under construction."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def weight(self, name: str, *shape: int, centred: bool = False) -> str:
        array = self.rng.standard_normal(shape) + 1.0
        if centred:
            array -= array.mean(axis=-1, keepdims=True)
        self.weights[name] = array
        return name

    def node(self, op_type: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        made = helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes)
        self.nodes.append(made)
        return outputs[0]

    def norm(self, x: str, name: str) -> str:
        self.weights[f"{name}.gamma"] = 1 + self.rng.random(C)
        self.weights[f"{name}.beta"] = self.rng.random(C)
        inputs = [x, f"{name}.gamma", f"{name}.beta"]
        return self.node("LayerNormalization", inputs, name, axis=-1)

    def fold(self, *outputs: str, split: int = 1 << 20, target: Target = Target.ONNX) -> Folded:
        graph = helper.make_graph(
            self.nodes,
            "plan",
            [
                helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", 4, C]),
                helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 4]),
            ],
            [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        imports = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        folded = fold(model, target, allow_split_bytes=split)
        feeds = {"x": self.rng.standard_normal((2, 4, C)), "ids": self.rng.integers(0, V, (2, 4))}
        expected = evaluate(model, feeds)
        assert relative_error(expected, evaluate(folded.model, feeds)) <= _BOUND
        assert folded.proof.passed, folded.proof.failures
        return folded


def _in_place(plan: Plan) -> set[str]:
    return {weight.value for weight in plan.weights if not weight.split}


def _copied(plan: Plan) -> dict[str, tuple[ReaderRef, ...]]:
    return {weight.value: weight.readers for weight in plan.weights if weight.split}


def _embedding(graph: Graph, tied: bool, **table: bool) -> None:
    graph.weight("table", V, C, **table)
    graph.node("Gather", ["table", "ids"], "e", axis=0)
    graph.norm("e", "ln")
    if tied:
        graph.node("Transpose", ["table"], "head", perm=[1, 0])
        graph.node("MatMul", ["ln", "head"], "logits")


def test_a_table_that_only_the_stream_reads_is_centred_in_place() -> None:
    graph = Graph()
    _embedding(graph, tied=False)
    plan = graph.fold("ln").plan
    assert _in_place(plan) == {"table"}
    assert not plan.insertions
    assert plan.split_bytes == 0


def test_a_small_tied_table_is_copied() -> None:
    graph = Graph()
    _embedding(graph, tied=True)
    plan = graph.fold("logits").plan
    assert _copied(plan) == {"table": (ReaderRef("e", 0),)}
    assert plan.split_bytes == V * C * 8


def test_a_large_tied_table_of_one_norm_is_left_where_a_centring_costs_more() -> None:
    graph = Graph()
    _embedding(graph, tied=True)
    plan = graph.fold("logits", split=0).plan
    assert plan.empty
    assert plan.refusals[0][1].code is RefusalCode.EXACT_READER


def test_a_large_tied_table_of_many_norms_gets_one_centring() -> None:
    graph = Graph()
    graph.weight("table", V, C)
    h = graph.node("Gather", ["table", "ids"], "e", axis=0)
    for k in range(6):
        graph.norm(h, f"ln{k}")
        graph.node("MatMul", [f"ln{k}", graph.weight(f"W{k}", C, C)], f"w{k}")
        h = graph.node("Add", [h, f"w{k}"], f"h{k}")
    graph.norm(h, "last")
    graph.node("Transpose", ["table"], "head", perm=[1, 0])
    graph.node("MatMul", ["last", "head"], "logits")
    plan = graph.fold("logits", split=0).plan
    assert len(plan.folds) == 7
    assert [insertion.value for insertion in plan.insertions] == ["e"]
    assert _in_place(plan) == {f"W{k}" for k in range(6)}
    assert plan.cost_ps < plan.gain_ps


def test_a_large_table_that_is_centred_already_costs_nothing() -> None:
    graph = Graph()
    _embedding(graph, tied=True, centred=True)
    plan = graph.fold("logits", split=0).plan
    assert len(plan.folds) == 1
    assert not plan.insertions
    assert not plan.weights
    assert plan.cost_ps == 0


def test_a_large_table_that_is_not_centred_is_not_mapped_to_find_that_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mapped file more may count as memory than what is looked at: all of it."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], axis=0),
        helper.make_node("LayerNormalization", ["e", "gamma"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "table"], ["y"]),
    ]
    table = numpy_helper.from_array(rng.standard_normal((600, 600)).astype(np.float32), "table")
    gamma = numpy_helper.from_array(np.ones(600, np.float32), "gamma")
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [table, gamma],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    source = model_io.load(tmp_path / "m.onnx")
    monkeypatch.setattr(FileTensor, "_bytes", _never)
    settings = Settings(allow_split=1 << 10)
    findings = decide_all(prepare(source), settings, without=AFFINE_PASSES).findings
    assert findings.plan.empty
    assert len(findings.refusals) == 1


def _never(tensor: FileTensor) -> Array:
    raise AssertionError(f"'{tensor.name}' is mapped")


def test_a_weight_that_two_writers_in_the_plan_share_is_centred_in_place() -> None:
    graph = Graph()
    W = graph.weight("W", C, C)
    graph.node("MatMul", ["x", W], "a")
    graph.node("Relu", ["x"], "r")
    graph.node("MatMul", ["r", W], "b")
    graph.norm("a", "ln1")
    graph.norm("b", "ln2")
    plan = graph.fold("ln1", "ln2", split=0).plan
    assert _in_place(plan) == {"W"}
    assert len(plan.folds) == 2


@pytest.mark.parametrize(("split", "copies"), [(C * C * 8, {"W"}), (C * C * 8 - 1, set())])
def test_a_weight_with_an_exact_reader_is_copied_up_to_the_limit(
    split: int, copies: set[str]
) -> None:
    graph = Graph()
    W = graph.weight("W", C, C)
    graph.node("MatMul", ["x", W], "a")
    graph.norm("a", "ln")
    graph.node("Relu", [W], "seen")
    plan = graph.fold("ln", "seen", split=split).plan
    assert set(_copied(plan)) == copies
    assert len(plan.folds) == len(copies)


def test_a_constant_that_a_norm_itself_reads_is_copied_for_the_norm_alone() -> None:
    graph = Graph()
    W = graph.weight("W", 4, C)
    graph.norm(W, "ln")
    graph.node("Add", ["x", W], "seen")
    plan = graph.fold("ln", "seen").plan
    assert [(weight.value, weight.norms) for weight in plan.weights] == [("W", ("ln",))]


def test_a_weight_on_both_sides_of_a_product_is_copied_for_one_side() -> None:
    graph = Graph()
    W = graph.weight("W", C, C)
    graph.node("MatMul", [W, W], "square")
    graph.node("MatMul", ["x", "square"], "a")
    graph.norm("a", "ln")
    plan = graph.fold("ln").plan
    assert _copied(plan) == {"W": (ReaderRef("square", 1),)}


def test_a_value_on_both_sides_of_a_product_is_centred_for_one_side() -> None:
    graph = Graph()
    graph.node("Reshape", ["x", "shape"], "square")
    graph.weights["shape"] = np.array([-1, C, C], dtype=np.int64)
    graph.nodes[0].input[0] = "wide"
    graph.nodes.insert(0, helper.make_node("Concat", ["x", "x"], ["wide"], axis=1))
    h = graph.node("MatMul", ["square", "square"], "h")
    for k in range(3):
        graph.norm(h, f"ln{k}")
    plan = graph.fold("ln0", "ln1", "ln2").plan
    assert all(reader.index == 1 for i in plan.insertions for reader in i.readers)


@pytest.mark.parametrize("sibling_is", ["output", "exact reader", "norm"])
def test_the_parts_of_a_split_move_together(sibling_is: str) -> None:
    graph = Graph()
    graph.node("MatMul", ["x", graph.weight("W", C, C)], "h")
    graph.node("Split", ["h"], "a", "b", axis=1, num_outputs=2)
    graph.norm("a", "ln")
    other = "b"
    if sibling_is == "exact reader":
        other = graph.node("Relu", ["b"], "seen")
    elif sibling_is == "norm":
        other = graph.norm("b", "ln2")
    plan = graph.fold("ln", other, split=0).plan
    assert len(plan.folds) == (2 if sibling_is == "norm" else 0)


def test_two_copies_of_one_weight_along_two_fibers_have_their_own_names() -> None:
    graph = Graph()
    W = graph.weight("W", C, C)
    graph.node("MatMul", ["x", W], "a")
    graph.norm("a", "ln1")
    graph.node("MatMul", ["wide", "xt"], "b")
    graph.nodes.insert(0, helper.make_node("Identity", [W], ["wide"]))
    graph.nodes.insert(0, helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]))
    graph.node("Transpose", ["b"], "bt", perm=[0, 2, 1])
    graph.norm("bt", "ln2")
    graph.node("Relu", [W], "seen")
    folded = graph.fold("ln1", "ln2", "seen")
    assert len(folded.plan.folds) == 2
    assert len(_copied(folded.plan)) == 1
    assert len({w.fiber for w in folded.plan.weights}) == 2
    names = [tensor.name for tensor in folded.model.graph.initializer]
    assert len(names) == len(set(names))


def test_a_shared_input_of_two_fibers_keeps_both_norms_exact() -> None:
    """One norm over channels, one over positions: a shift of the one is seen by the other."""
    graph = Graph()
    graph.node("MatMul", ["x", graph.weight("W", C, C)], "h")
    graph.norm("h", "ln")
    graph.node("Transpose", ["h"], "ht", perm=[0, 2, 1])
    graph.weights["g"] = np.ones(4)
    graph.node("LayerNormalization", ["ht", "g"], "ln2", axis=-1)
    plan = graph.fold("ln", "ln2", split=0).plan
    assert "W" not in _in_place(plan)


def test_an_epsilon_that_no_attribute_can_hold_keeps_the_spelling_of_the_norm() -> None:
    """Attributes are float32; the constant of a float64 model is not."""
    graph = Graph()
    graph.weights |= {"axes": np.array([-1], dtype=np.int64), "two": np.array(2.0)}
    graph.weights["epsilon"] = np.array(1e-3)
    h = graph.node("MatMul", ["x", graph.weight("W", C, C)], "h")
    graph.node("ReduceMean", [h, "axes"], "mean")
    graph.node("Sub", [h, "mean"], "centred")
    graph.node("Pow", ["centred", "two"], "square")
    graph.node("ReduceMean", ["square", "axes"], "variance")
    graph.node("Add", ["variance", "epsilon"], "moved")
    graph.node("Sqrt", ["moved"], "root")
    graph.node("Div", ["centred", "root"], "ln")
    folded = graph.fold("ln")
    assert len(folded.plan.folds) == 1
    assert "Sub" not in {node.op_type for node in folded.model.graph.node}


@pytest.mark.parametrize("own", [True, False])
def test_a_difference_from_its_own_mean_is_centred_and_from_another_is_not(own: bool) -> None:
    """Another node reads it, or it would be a part of the norm."""
    graph = Graph()
    graph.weights["axes"] = np.array([-1], dtype=np.int64)
    h = graph.node("Relu", ["x"], "h")  # nothing before it can be centered
    graph.node("ReduceMean", [h if own else "x", "axes"], "mean")
    graph.norm(graph.node("Sub", [h, "mean"], "difference"), "ln")
    plan = graph.fold("ln", graph.node("Tanh", ["difference"], "read")).plan
    assert (len(plan.folds), plan.weights, plan.insertions) == (int(own), (), ())


def test_nothing_is_planned_for_a_model_without_norms() -> None:
    graph = Graph()
    graph.node("MatMul", ["x", graph.weight("W", C, C)], "h")
    plan = graph.fold("h").plan
    assert plan == Plan()
    assert str(plan) == "nothing to do"


def test_a_plan_never_costs_more_than_it_gains() -> None:
    """An insertion serves one norm: left.  It serves many: done."""
    for norms in (1, 2, 5, 6, 8):
        graph = Graph()
        names = [graph.norm("x", f"ln{k}") for k in range(norms)]
        plan = graph.fold(*names).plan
        assert plan.gain_ps >= plan.cost_ps
        assert len(plan.folds) in (0, norms)
        assert bool(plan.insertions) == bool(plan.folds)
    assert plan.folds


@pytest.mark.parametrize("known", [True, False])
def test_a_centring_of_rows_that_nobody_counts_is_not_taken_for_one_of_a_row(known: bool) -> None:
    graph = Graph()
    graph.weights |= {"first": np.array([0]), "one": np.array([1])}
    graph.node("Greater", ["ids", "first"], "some")
    graph.node("Cast", ["some"], "some.count", to=TensorProto.INT64)
    graph.node("ReduceMax", ["some.count"], "most", keepdims=0)
    graph.node("Reshape", ["most", "one"], "counted")
    graph.node("Sigmoid", ["x"], "gate")
    graph.node("Slice", ["gate", "first", "one" if known else "counted", "one"], "row")
    graph.node("Add", [graph.node("MatMul", ["x", graph.weight("W", C, C)], "w"), "row"], "h")
    plan = graph.fold(graph.norm("h", "ln0"), graph.norm("h", "ln1")).plan
    assert [insertion.value for insertion in plan.insertions] == (["row"] if known else [])


@pytest.mark.parametrize("target", list(Target))
def test_a_centring_for_every_two_norms_does_not_pay(target: Target) -> None:
    """As of RWKV, whose feed-forward ends with a product of two activations."""
    graph, h = Graph(), "x"
    for block in range(3):
        first = graph.norm(h, f"first{block}")
        graph.node("MatMul", [first, graph.weight(f"W{block}", C, C)], f"w{block}")
        h = graph.node("Add", [h, f"w{block}"], f"m{block}")
        second = graph.norm(h, f"second{block}")
        graph.node("Sigmoid", [second], f"gate{block}")
        graph.node("Mul", [second, f"gate{block}"], f"product{block}")
        h = graph.node("Add", [h, f"product{block}"], f"h{block}")
    plan = graph.fold(graph.norm(h, "last"), target=target).plan
    assert not plan.folds
    assert not plan.insertions
