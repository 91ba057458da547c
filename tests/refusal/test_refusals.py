"""Every reason to leave a norm: what is at fault is named, and the forbidden fold is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.passes.base import Settings
from onnxfold.passes.centring.cheapest import Demand, cheapest_plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.recognition import find_norms
from onnxfold.refusal import RefusalCode
from onnxfold.shapes import infer
from onnxfold.streams.model_transfers import ModelTransfers
from onnxfold.target import Target
from onnxfold.targets.costs import Costs
from tests.graphs import graph
from tests.refusal.graphs import CASES
from tests.refusal.graphs import case as made
from tests.soundness.folding import evaluate, fold, forced, relative_error

# A wrong fold changes outputs of size 1 visibly; a right one by roundings of float64.
_VISIBLE, _ROUNDING = 1e-4, 1e-12

# Refused before any plan, so that there is nothing to force, or for other reasons than exactness.
_EARLY = {
    RefusalCode.ALREADY_RMS,
    RefusalCode.DYNAMIC_FIBER,
    RefusalCode.EXCLUDED,
    RefusalCode.NO_CHEAPER_FORM,
    RefusalCode.NON_FINITE_WEIGHT,
    RefusalCode.NOT_PROVED,
    RefusalCode.NOT_WORTH,
    RefusalCode.SPATIAL_NORM,
}
# Reasons of the affine fusion alone, which has tests of its own.
_AFFINE = {
    RefusalCode.DYNAMIC_WEIGHT,
    RefusalCode.OUTLYING_GAMMA,
    RefusalCode.SHARED_WEIGHT,
    RefusalCode.SHIFT_CANNOT_CROSS,
}
# Reasons about other tools after a spelling: tests/compatibility/test_tools_behind.py.
_SPELLED = {RefusalCode.COMES_APART}
# Reasons of `convert` alone: tests/passes/stream_forms and compression.
_RESTORING = {RefusalCode.ALREADY_LAYER, RefusalCode.HAS_MEAN, RefusalCode.UNALIGNED}
# Of what is exact but for roundings: test_layer_norms.py, test_half_weights.py.
_ROUNDING_CODES = {RefusalCode.ROUNDS_MORE}


@pytest.mark.parametrize("name", CASES)
def test_a_norm_that_must_stay_stays_and_the_node_at_fault_is_named(name: str) -> None:
    case = made(name)
    folded = fold(case.model, Target.ONNX)
    assert "ln" not in {done.output for done in folded.plan.folds}
    refusal = folded.findings.refusals["ln"]
    assert refusal.code is case.code
    assert case.culprit in refusal.nodes
    assert case.culprit in refusal.sentence
    # What is done to the rest of the model is right.
    expected = evaluate(case.model, case.feeds)
    assert relative_error(expected, evaluate(folded.model, case.feeds)) < _ROUNDING
    assert folded.proof.passed


@pytest.mark.parametrize("name", CASES)
def test_the_forbidden_fold_is_wrong_in_numbers_and_in_the_proof(name: str) -> None:
    case = made(name)
    folded = forced(case.model, case.forbidden(), Target.ONNX)
    expected = evaluate(case.model, case.feeds)
    assert relative_error(expected, evaluate(folded.model, case.feeds)) > _VISIBLE
    assert not folded.proof.passed
    assert folded.proof.failures


def test_every_reason_has_a_graph() -> None:
    given = {made(name).code for name in CASES}
    others = _EARLY | _AFFINE | _SPELLED | _RESTORING | _ROUNDING_CODES
    assert given | others == set(RefusalCode)
    assert not given & others


def _one_norm(norm: str, dims: str, opset: int = 18) -> ir.Model:
    halves = {"w": np.full(4, 0.5, np.float32), "one": np.full(1, 0.5, np.float32)}
    return prepare(graph(f"[norm] y = {norm}", f"float[{dims}] x", "float y", halves, opset)).model


@pytest.mark.parametrize(
    ("code", "model"),
    [
        ("already_rms", _one_norm("RMSNormalization(x, w)", "batch,4", 23)),
        ("dynamic_fiber", _one_norm("LayerNormalization(x, one)", "batch,width")),
        ("no_cheaper_form", _one_norm("MeanVarianceNormalization<axes=[1]>(x)", "batch,4")),
        ("not_centred_norm", _one_norm("LpNormalization(x)", "batch,4")),
        ("spatial_norm", _one_norm("InstanceNormalization(x, w, w)", "batch,4,8")),
    ],
)
def test_norms_that_are_refused_early_say_why(code: str, model: ir.Model) -> None:
    settings = Settings(Target.KERNELS)
    findings = decide_all(prepare(model), settings, without=AFFINE_PASSES).findings
    assert findings.plan.empty
    assert findings.refusals["y"].code.value == code


def test_an_excluded_norm_says_so() -> None:
    model = _one_norm("LayerNormalization(x, w)", "batch,4")
    settings = Settings(exclude="^norm$")
    findings = decide_all(prepare(model), settings, without=AFFINE_PASSES).findings
    assert findings.refusals["y"].code is RefusalCode.EXCLUDED


def test_a_fold_that_saves_nothing_says_so() -> None:
    case = fold(_foldable(), Target.ONNX)
    assert len(case.plan.folds) == 1
    view = infer(prepare(ir.from_proto(_foldable())).model)
    sites = find_norms(view)
    costs = Costs(layer_norm=100, rms_norm=100, centring=100)
    demands = [Demand(site, 0) for site in sites]
    plan = cheapest_plan(ModelTransfers(view, sites), demands, costs, allow_split_bytes=1 << 20)
    assert not plan.folds
    assert [refusal.code for _, refusal in plan.refusals] == [RefusalCode.NOT_WORTH]


def _foldable() -> onnx.ModelProto:
    case = made("exact_reader")
    del case.model.graph.output[1]
    del case.model.graph.node[-1]
    return case.model


def test_a_refusal_is_a_row_of_the_report() -> None:
    case = made("activation")
    refusal = fold(case.model, Target.ONNX).findings.refusals["ln"]
    assert refusal.to_json() == {
        "code": "activation",
        "sentence": refusal.sentence,
        "nodes": ["relu"],
    }
