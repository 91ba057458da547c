"""RMSNorms become LayerNorms if the weights give their inputs mean 0, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Conversion, WrittenForm
from onnxfold.passes.base import NormsPlan, ProofOutcome, Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stream_forms.restore import apply
from onnxfold.pipeline.finalize import define_functions
from onnxfold.pipeline.proofs import of_norms as proves
from onnxfold.target import Target
from tests.passes.centred_stream import FEEDS, C, CentredStream, activation, halved
from tests.soundness.float64 import evaluate, relative_error

_prove = proves("folded_norms")

_VISIBLE, _ROUNDING = 1e-4, 1e-12  # a wrong norm changes outputs of size 1; float64 rounds at 1e-16


def _converted(model: onnx.ModelProto, **options: Any) -> onnxfold.Result:
    return onnxfold.convert(model, to="layer", check=0, **options)


def _reason(model: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    result = _converted(model, **options)
    assert not result.changed
    (norm,) = result.report["inspect"]["norms"]
    assert norm["action"] == "keep"
    reason: dict[str, Any] = norm["reason"]
    return reason


def _forced(model: onnx.ModelProto) -> tuple[onnx.ModelProto, ProofOutcome]:
    """Restore the norm of a model whatever it reads."""
    before = prepare(ir.from_proto(model)).info
    edit = Editor(before, copy=True)
    plan = NormsPlan(("n",))
    apply(edit, plan, Settings(convert_to=Conversion.LAYER))
    define_functions(ModelInfo(edit.model), Target.ONNX, WrittenForm.AUTO)
    after = ModelInfo(edit.model)
    shown = _prove(before, after, plan)
    return ir.to_proto(edit.model), shown


def test_an_rms_norm_of_a_centred_stream_becomes_a_layer_norm() -> None:
    model = CentredStream().model()
    result = _converted(model)
    assert result.changed
    kinds = [node.op_type for node in result.model.graph.node]
    assert kinds.count("LayerNormalization") == 1
    assert "RMSNormalization" not in kinds
    assert result.proof is not None
    assert result.proof.passed
    assert result.proof.folded_norms == 1
    expected = evaluate(model, FEEDS)
    assert relative_error(expected, evaluate(result.model, FEEDS)) < _ROUNDING


def test_a_second_run_finds_a_layer_norm() -> None:
    once = _converted(CentredStream().model()).model
    assert _reason(once)["code"] == "already_layer"


@pytest.mark.parametrize("weight", ["table", "W", "b"])
def test_a_weight_with_a_mean_is_named_and_restoring_all_the_same_is_wrong(weight: str) -> None:
    model = CentredStream(weight).model()
    reason = _reason(model)
    assert reason["code"] == "has_mean"
    assert reason["nodes"] == [weight]
    assert weight in reason["sentence"]
    result, shown = _forced(model)
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) > _VISIBLE
    assert shown.failures


def _scaled(graph: CentredStream) -> str:
    graph.weights["scale"] = np.linspace(1.0, 2.0, C)
    graph.node("Mul", ["h", "scale"], "scaled")
    return "scaled"


def _lifted(graph: CentredStream) -> str:
    graph.weights["one"] = np.array(1.0)
    graph.node("Add", ["h", "one"], "lifted")
    return "lifted"


@pytest.mark.parametrize(
    ("between", "code"),
    [(activation, "activation"), (_scaled, "varies_along_fiber"), (_lifted, "has_mean")],
)
def test_an_operator_that_gives_a_mean_is_named_and_restoring_all_the_same_is_wrong(
    between: Callable[[CentredStream], str], code: str
) -> None:
    model = CentredStream().model(between)
    assert _reason(model)["code"] == code
    result, shown = _forced(model)
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) > _VISIBLE
    assert shown.failures


def test_a_carrier_between_the_weights_and_the_norm_keeps_the_mean_of_0() -> None:
    model = CentredStream().model(halved)
    result = _converted(model)
    assert result.changed
    expected = evaluate(model, FEEDS)
    assert relative_error(expected, evaluate(result.model, FEEDS)) < _ROUNDING


def test_an_excluded_norm_stays() -> None:
    assert _reason(CentredStream().model(), exclude="^n$")["code"] == "excluded"


def test_the_forced_restoring_of_a_centred_stream_is_right() -> None:
    """The oracle of the tests above is not one that fails always."""
    model = CentredStream().model()
    result, shown = _forced(model)
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) < _ROUNDING
    assert not shown.failures
