"""What of a pass is left out where its proof fails: no more than what is at fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.passes.base import Pass, ProofOutcome
from onnxfold.pipeline import PASSES, folding
from onnxfold.pipeline.run import Result
from onnxfold.targets import lowering as targets
from tests.builders import pre_norm_model

_VIT = Path("models/digits_vit/digits_vit.onnx")
_REASON = "the proof failed: it cannot be shown"


@cache
def _undisturbed() -> Result:
    return onnxfold.optimize(ir.load(_VIT), target="kernels", defer="all", check=0)


def _fails_for(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[[frozenset[str]], bool]
) -> Counter[str]:
    """Let the proof of a pass fail for the moves that ``wrong`` names; count its proofs."""
    proofs = Counter[str]()

    def changed(each: Pass[Any]) -> Pass[Any]:
        def prove(before: ModelInfo, after: ModelInfo, decision: Any) -> ProofOutcome:
            proofs[each.name] += 1
            if wrong(frozenset(each.moves(decision))):
                return ProofOutcome(failures=("it cannot be shown",))
            return each.prove(before, after, decision)

        return replace(each, prove=prove)

    passes = tuple(changed(each) if each.name == name else each for each in PASSES)
    monkeypatch.setattr(folding, "PASSES", passes)
    return proofs


def _moves(result: Result, name: str) -> list[str]:
    plan = result.plan
    done: dict[str, Iterable[Any]] = {
        "affine": plan.fusions,
        "scales": plan.scales,
        "centring": plan.folds,
        "deferral": plan.deferred,
    }
    return [move.output for move in done[name]]


def _is_right(result: Result) -> bool:
    assert result.proof is not None
    assert result.verification is not None
    return result.proof.passed and result.verification.passed


@pytest.mark.parametrize(
    ("name", "at_fault"),
    [
        ("affine", slice(0, 1)),
        ("scales", slice(-1, None)),
        ("centring", slice(1, 3)),
        ("deferral", slice(0, 1)),
        ("affine", slice(-1, None)),
        ("deferral", slice(1, 3)),
    ],
)
def test_what_is_not_proved_is_left_out_and_the_rest_stands(
    name: str, at_fault: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = _moves(_undisturbed(), name)
    wrong = frozenset(every[at_fault])
    assert 0 < len(wrong) < len(every)
    _fails_for(monkeypatch, name, lambda moves: not wrong.isdisjoint(moves))
    result = onnxfold.optimize(ir.load(_VIT), target="kernels", defer="all", check=2)
    (left,) = result.report["left_out"]
    assert (left["name"], left["reason"], frozenset(left["moves"])) == (name, _REASON, wrong)
    assert frozenset(_moves(result, name)) == frozenset(every) - wrong
    assert _is_right(result)


def test_the_norms_at_fault_say_why_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    _fails_for(monkeypatch, "centring", lambda moves: "n1" in moves)
    rows = onnxfold.optimize(pre_norm_model(4)).report["inspect"]["norms"]
    stay = {row["output"]: row["reason"] for row in rows if not row["foldable"]}
    assert list(stay) == ["n1"]
    assert (stay["n1"]["code"], stay["n1"]["sentence"]) == ("not_proved", _REASON)


def test_of_two_moves_that_fail_together_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    _fails_for(monkeypatch, "centring", lambda moves: {"n0", "n3"} <= moves)
    result = onnxfold.optimize(pre_norm_model(4), norm_form="decomposed")
    (left,) = result.report["left_out"]
    assert left["moves"] in (["n0"], ["n3"])
    assert len(result.plan.folds) == 4
    assert _is_right(result)


def test_one_wrong_move_of_many_is_found_with_few_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = _fails_for(monkeypatch, "centring", lambda moves: "n11" in moves)
    result = onnxfold.optimize(pre_norm_model(31), check=0)
    assert result.report["left_out"][0]["moves"] == ["n11"]
    # Of all 32 at first; then two for each of the five times that they are halved, at most, and of
    # the one that is left.
    assert proofs["centring"] <= 1 + 2 * 5 + 1


def test_the_search_ends_soon_where_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = _fails_for(monkeypatch, "centring", bool)
    result = onnxfold.optimize(pre_norm_model(31), check=0)
    assert result.report["left_out"] == [{"name": "centring", "reason": _REASON}]
    assert not result.plan.folds
    assert proofs["centring"] == 1 + 4


def test_a_model_whose_sizes_do_not_fit_costs_one_proof_for_each_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No part of a pass could be proved where a node that reads its result does not run."""
    proofs = _fails_for(monkeypatch, "centring", lambda _: False)
    model = ir.from_proto(pre_norm_model(5))
    gamma = model.graph.initializers["norm2.gamma"]
    gamma.const_value, gamma.shape = ir.tensor(np.ones(5, np.float32)), ir.Shape([5])
    (left_out,) = (
        each
        for each in onnxfold.optimize(model, check=0, fold="always").report["left_out"]
        if each["name"] == "centring"
    )
    assert left_out["reason"].startswith("the model is not valid ONNX: 'norm2.gamma' of ")
    assert "has shape [5] for axes of [16]" in left_out["reason"]
    assert proofs["centring"] == 1


def test_one_wrong_spelling_costs_its_norm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made up here but the mistake: the proof finds it."""
    real = targets.call

    def wrong(name: str, inputs: Any, **options: Any) -> ir.Node:
        at_fault = name.startswith("RMS") and inputs[0].name == "x2"
        return real(name, inputs, **(options | {"epsilon": 0.5} if at_fault else options))

    monkeypatch.setattr(targets, "call", wrong)
    result = onnxfold.optimize(pre_norm_model(4), target="kernels", fuse_residual=False)
    (left,) = result.report["left_out"]
    assert (left["name"], left["moves"]) == ("centring", ["n2"])
    assert len(result.plan.folds) == 4
    assert _is_right(result)
