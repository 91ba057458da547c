"""What is planned on small graphs: in place, copies, insertions, and what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfold import model_io
from onnxfold.model_io import FileTensor
from onnxfold.passes.base import Settings
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.target import Target
from tests.case_files import read, shapes
from tests.graphs import Array, model, without_shapes
from tests.soundness.folding import Folded, evaluate, fold, relative_error

C, V = 8, 64
CASES = read("centring_plans")
_BOUND = 1e-10  # float64 models: rounding alone
_LN = "LayerNormalization<axis=-1>"


def planned(
    body: str, outputs: str, sizes: str = "", split: int = 1 << 20, target: Target = Target.ONNX
) -> Folded:
    """Fold a graph, which is proved and computes the same."""
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {"gamma": 1 + rng.random(C), "beta": rng.random(C)}
    for name, shape in shapes(sizes).items():
        array = rng.standard_normal(shape) + 1.0
        made[name] = array - array.mean(-1, keepdims=True) if name.endswith("0") else array
    made |= {"gamma4": np.ones(4), "last": np.array([-1]), "two": np.array(2.0)}
    made |= {"first": np.array([0]), "one": np.array([1]), "epsilon": np.array(1e-3)}
    made |= {"square_shape": np.array([-1, C, C])}
    inputs, results = f"double[batch,4,{C}] x, int64[batch,4] ids", outputs.split()
    proto = model(body, inputs, ", ".join(f"double {name}" for name in results), made)
    for node in proto.graph.node:
        node.name = node.output[0]
    folded = fold(without_shapes(proto), target, allow_split_bytes=split)
    feeds = {"x": rng.standard_normal((2, 4, C)), "ids": rng.integers(0, V, (2, 4))}
    assert relative_error(evaluate(proto, feeds), evaluate(folded.model, feeds)) <= _BOUND
    assert folded.proof.passed, folded.proof.failures
    return folded


def told(folded: Folded) -> dict[str, Any]:
    """Return what the plan does in a few words, without what is empty."""
    plan = folded.plan
    copies = [weight for weight in plan.weights if weight.split]
    found = {
        "folds": len(plan.folds),
        "in place": [weight.value for weight in plan.weights if not weight.split],
        "copies": [
            " ".join(
                [
                    weight.value,
                    "for",
                    *(f"{r.node} {r.index}" for r in weight.readers),
                    *weight.norms,
                ]
            )
            for weight in copies
        ],
        "bytes": plan.split_bytes,
        "insertions": [insertion.value for insertion in plan.insertions],
        "reason": "" if plan.folds or not plan.refusals else plan.refusals[0][1].code.value,
    }
    return {what: known for what, known in found.items() if known}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_that_of_the_case(case: str) -> None:
    sizes, outputs, split, golden = CASES[case].columns
    folded = planned(CASES[case].body, outputs, sizes, int(split))
    assert told(folded) == json.loads(golden)
    plan = folded.plan
    assert plan.gain_ps >= plan.cost_ps
    assert plan.cost_ps == 0 or plan.insertions or plan.weights
    names = [tensor.name for tensor in folded.model.graph.initializer]
    assert len(names) == len(set(names))


def test_a_model_without_norms_has_an_empty_plan() -> None:
    plan = planned(CASES["a model without norms"].body, "h", "W 8 8").plan
    assert plan == Plan()
    assert str(plan) == "nothing to do"


def test_a_large_tied_table_of_many_norms_gets_one_centring() -> None:
    blocks = "".join(
        f"ln{k} = {_LN}(h{k}, gamma, beta) w{k} = MatMul(ln{k}, W{k}) h{k + 1} = Add(h{k}, w{k}) "
        for k in range(1, 7)
    )
    body = (
        f"h1 = Gather<axis=0>(T, ids) {blocks} last_norm = {_LN}(h7, gamma, beta) "
        "head = Transpose<perm=[1,0]>(T) logits = MatMul(last_norm, head)"
    )
    sizes = ", ".join([f"T {V} {C}", *(f"W{k} {C} {C}" for k in range(1, 7))])
    folded = planned(body, "logits", sizes, 0)
    assert told(folded)["folds"] == 7
    assert told(folded)["insertions"] == ["h1"]
    assert set(told(folded)["in place"]) == {f"W{k}" for k in range(1, 7)}
    assert folded.plan.cost_ps < folded.plan.gain_ps


def test_a_large_table_that_is_not_centred_is_not_mapped_to_find_that_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mapped file more may count as memory than what is looked at: all of it."""
    body = f"e = Gather<axis=0>(T, ids) n = {_LN}(e, gamma) y = MatMul(n, T)"
    made: dict[str, Array] = {"T": np.random.default_rng(0).standard_normal((600, 600))}
    made["gamma"] = np.ones(600)
    onnx.save(
        model(body, "int64[n] ids", "float[n,600] y", made, dtype=np.float32), tmp_path / "m.onnx"
    )
    source = model_io.load(tmp_path / "m.onnx")
    monkeypatch.setattr(FileTensor, "_bytes", _never)
    settings = Settings(allow_split=1 << 10)
    findings = decide_all(prepare(source), settings, without=AFFINE_PASSES).findings
    assert findings.plan.empty
    assert len(findings.refusals) == 1


def _never(tensor: FileTensor) -> Array:
    raise AssertionError(f"'{tensor.name}' is mapped")


def test_a_value_on_both_sides_of_a_product_is_centred_for_one_side() -> None:
    norms = "".join(f"ln{k} = {_LN}(h, gamma, beta) " for k in range(3))
    body = (
        "wide = Concat<axis=1>(x, x) square = Reshape(wide, square_shape) "
        f"h = MatMul(square, square) {norms}"
    )
    plan = planned(body, "ln0 ln1 ln2").plan
    assert all(reader.index == 1 for i in plan.insertions for reader in i.readers)


def test_an_epsilon_that_no_attribute_can_hold_keeps_the_spelling_of_the_norm() -> None:
    """Attributes are float32; the constant of a float64 model is not."""
    body = (
        "h = MatMul(x, W) mean = ReduceMean(h, last) centred = Sub(h, mean) "
        "square = Pow(centred, two) variance = ReduceMean(square, last) "
        "moved = Add(variance, epsilon) root = Sqrt(moved) ln = Div(centred, root)"
    )
    folded = planned(body, "ln", "W 8 8")
    assert len(folded.plan.folds) == 1
    assert "Sub" not in {node.op_type for node in folded.model.graph.node}


def test_a_plan_never_costs_more_than_it_gains() -> None:
    """An insertion serves one norm: left.  It serves many: done."""
    for norms in (1, 2, 5, 6, 8):
        names = [f"ln{k}" for k in range(norms)]
        body = " ".join(f"{name} = {_LN}(x, gamma, beta)" for name in names)
        plan = planned(body, " ".join(names)).plan
        assert plan.gain_ps >= plan.cost_ps
        assert len(plan.folds) in (0, norms)
        assert bool(plan.insertions) == bool(plan.folds)
    assert plan.folds


@pytest.mark.parametrize("target", list(Target))
def test_a_centring_for_every_two_norms_does_not_pay(target: Target) -> None:
    """As of RWKV, whose feed-forward ends with a product of two activations."""
    blocks = "".join(
        f"p{k} = {_LN}(h{k}, gamma, beta) w{k} = MatMul(p{k}, W{k + 1}) m{k} = Add(h{k}, w{k}) "
        f"q{k} = {_LN}(m{k}, gamma, beta) gate{k} = Sigmoid(q{k}) product{k} = Mul(q{k}, gate{k}) "
        f"h{k + 1} = Add(m{k}, product{k}) "
        for k in range(3)
    )
    body = f"h0 = Identity(x) {blocks} y = {_LN}(h3, gamma, beta)"
    plan = planned(body, "y", "W1 8 8, W2 8 8, W3 8 8", target=target).plan
    assert not plan.folds
    assert not plan.insertions
