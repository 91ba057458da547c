"""The results of compression on a stream, right or wrong, in float64."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Conversion, WrittenForm
from onnxfold.passes.base import ProofOutcome, Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stream_forms.compress import apply
from onnxfold.passes.stream_forms.plan import CompressionPlan, Shortened
from onnxfold.pipeline.finalize import define_functions, settle_functions
from onnxfold.pipeline.proofs import of_norms as proves
from onnxfold.target import Target
from tests.passes.centred_stream import FEEDS
from tests.soundness.float64 import evaluate, relative_error

prove = proves("compressed_norms")

VISIBLE, ROUNDING = (
    1e-4,
    1e-12,
)  # a lost channel changes outputs of size 1; float64 rounds at 1e-16


def to_crms(model: onnx.ModelProto, **options: Any) -> onnxfold.Result:
    return onnxfold.convert(model, to="crms", check=0, **options)


def shapes_of_weights(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def compressed_by(
    model: onnx.ModelProto, plan: CompressionPlan
) -> tuple[onnx.ModelProto, ProofOutcome]:
    """Carry out a plan that nobody made for the model."""
    before = prepare(ir.from_proto(model)).info
    edit = Editor(before, copy=True)
    apply(edit, plan, Settings(convert_to=Conversion.CRMS))
    define_functions(ModelInfo(edit.model), Target.ONNX, WrittenForm.AUTO)
    shown = prove(before, ModelInfo(edit.model), plan)
    settle_functions(edit.model, 10)
    return ir.to_proto(edit.model), shown


PLAN = CompressionPlan(
    ("n",),
    weights=(Shortened("table", 1), Shortened("W", 1), Shortened("b", 0)),
    values=tuple(Shortened(name, 2) for name in ("e", "m", "a", "h")),
)


def is_wrong(model: onnx.ModelProto, plan: CompressionPlan = PLAN) -> None:
    result, shown = compressed_by(model, plan)
    assert shown.failures
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) > VISIBLE


def reason_of(model: onnx.ModelProto) -> dict[str, Any]:
    result = to_crms(model)
    assert not result.changed
    (norm,) = result.report["inspect"]["norms"]
    reason: dict[str, Any] = norm["reason"]
    return reason


def is_right(model: onnx.ModelProto, *shortened: str) -> onnx.ModelProto:
    """Compress a model; ``shortened`` names the weights that must have become shorter."""
    result = to_crms(model)
    old, new = shapes_of_weights(model), shapes_of_weights(result.model)
    assert {name for name in old if name in new and old[name] != new[name]} == set(shortened)
    assert result.proof is not None
    assert result.proof.passed
    assert result.proof.compressed_norms == 1
    assert "left_out" not in result.report
    expected = evaluate(model, FEEDS)
    assert relative_error(expected, evaluate(result.model, FEEDS)) < ROUNDING
    converted: onnx.ModelProto = result.model
    onnx.checker.check_model(converted, full_check=True)
    return converted
