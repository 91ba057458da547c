"""Every reason to leave a norm: what is at fault is named, and the forbidden fold is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.options import Target
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.cheapest import Demand, cheapest_plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.recognition import find_norms
from onnxfold.refusal import RefusalCode
from onnxfold.shapes import infer
from onnxfold.streams.model_transfers import ModelTransfers
from onnxfold.targets.costs import Costs
from tests.refusal.graphs import CASES, Case
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


def _cases() -> list[Case]:
    return [make() for make in CASES]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.strip("_"))
def test_a_norm_that_must_stay_stays_and_the_node_at_fault_is_named(
    make: Callable[[], Case],
) -> None:
    case = make()
    folded = fold(case.model, Target.ONNX)
    assert case.norm not in {done.output for done in folded.plan.folds}
    refusal = folded.findings.refusals[case.norm]
    assert refusal.code is case.code
    assert case.culprit in refusal.nodes
    assert case.culprit in refusal.sentence
    # What is done to the rest of the model is right.
    expected = evaluate(case.model, case.feeds)
    assert relative_error(expected, evaluate(folded.model, case.feeds)) < _ROUNDING
    assert folded.proof.passed


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.strip("_"))
def test_the_forbidden_fold_is_wrong_in_numbers_and_in_the_proof(make: Callable[[], Case]) -> None:
    case = make()
    folded = forced(case.model, case.forbidden(), Target.ONNX)
    expected = evaluate(case.model, case.feeds)
    assert relative_error(expected, evaluate(folded.model, case.feeds)) > _VISIBLE
    assert not folded.proof.passed
    assert folded.proof.failures


def test_every_reason_has_a_graph() -> None:
    given = {case.code for case in _cases()}
    others = _EARLY | _AFFINE | _SPELLED | _RESTORING | _ROUNDING_CODES
    assert given | others == set(RefusalCode)
    assert not given & others


def _one_norm(
    op_type: str,
    dims: list[int | str],
    weights: tuple[tuple[int, ...], ...],
    opset: int = 18,
    **attributes: Any,
) -> ir.Model:
    names = [f"w{k}" for k in range(len(weights))]
    node = helper.make_node(op_type, ["x", *names], ["y"], name="norm", **attributes)
    graph = helper.make_graph(
        [node],
        "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_empty_tensor_value_info("y")],
        [
            numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)
            for name, shape in zip(names, weights, strict=True)
        ],
    )
    imports = [helper.make_opsetid("", opset)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    return prepare(ir.from_proto(proto)).model


@pytest.mark.parametrize(
    ("code", "model"),
    [
        (
            RefusalCode.ALREADY_RMS,
            lambda: _one_norm("RMSNormalization", ["batch", 4], ((4,),), opset=23),
        ),
        (
            RefusalCode.DYNAMIC_FIBER,
            lambda: _one_norm("LayerNormalization", ["batch", "width"], ((1,),)),
        ),
        (
            RefusalCode.NO_CHEAPER_FORM,
            lambda: _one_norm("MeanVarianceNormalization", ["batch", 4], (), axes=[1]),
        ),
        (
            RefusalCode.NOT_CENTRED_NORM,
            lambda: _one_norm("LpNormalization", ["batch", 4], ()),
        ),
        (
            RefusalCode.SPATIAL_NORM,
            lambda: _one_norm("InstanceNormalization", ["batch", 4, 8], ((4,), (4,))),
        ),
    ],
    ids=lambda item: getattr(item, "value", ""),
)
def test_norms_that_are_refused_early_say_why(
    code: RefusalCode, model: Callable[[], ir.Model]
) -> None:
    settings = Settings(Target.KERNELS)
    findings = decide_all(prepare(model()), settings, without=AFFINE_PASSES).findings
    assert findings.plan.empty
    assert findings.refusals["y"].code is code


def test_an_excluded_norm_says_so() -> None:
    model = _one_norm("LayerNormalization", ["batch", 4], ((4,),))
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
    case = next(case for case in _cases() if case.code is RefusalCode.EXACT_READER)
    del case.model.graph.output[1]
    del case.model.graph.node[-1]
    return case.model


def test_a_refusal_is_a_row_of_the_report() -> None:
    case = _cases()[0]
    refusal = fold(case.model, Target.ONNX).findings.refusals["ln"]
    assert refusal.to_json() == {
        "code": "activation",
        "sentence": refusal.sentence,
        "nodes": ["relu"],
    }
