"""Streams of CRMSNorms get their last channel back, down to weights, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Conversion, WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stream_forms.decompress import apply, decide
from onnxfold.passes.stream_forms.plan import CompressionPlan
from onnxfold.pipeline.finalize import define_functions
from onnxfold.pipeline.proofs import of_norms as proves
from onnxfold.target import Target
from tests.passes.centred_stream import FEEDS, C, CentredStream, T, activation, halved
from tests.soundness.float64 import evaluate, relative_error

_prove = proves("decompressed_norms")

Array = npt.NDArray[Any]
_VISIBLE, _ROUNDING = 1e-4, 1e-12  # outputs of size 1 in float64
_SETTINGS = Settings(convert_to=Conversion.RMS)


def _told(graph: CentredStream) -> str:
    graph.weights["shape"] = np.array([0, 0, C], np.int64)
    return graph.node("Reshape", ["h", "shape"], "told")


def _compressed(between: Callable[[CentredStream], str] | None = None) -> onnx.ModelProto:
    model: onnx.ModelProto = onnxfold.convert(
        CentredStream().model(between), to="crms", check=0
    ).model
    return model


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("between", [None, halved, _told], ids=["plain", "halved", "told"])
def test_a_stream_gets_its_last_channel_back(
    between: Callable[[CentredStream], str] | None,
) -> None:
    compressed = _compressed(between)
    result = onnxfold.convert(compressed, to="rms", check=0)
    assert result.proof is not None
    assert result.proof.decompressed_norms == 1
    assert "left_out" not in result.report
    old, new = _weights(CentredStream().model()), _weights(result.model)
    for name in ("table", "W", "b"):
        assert np.allclose(new[name], old[name], rtol=0, atol=_ROUNDING)
    operators = {node.op_type for node in result.model.graph.node}
    assert not operators & {"Concat", "Neg", "ReduceSum"}
    expected = evaluate(compressed, FEEDS)
    assert relative_error(expected, evaluate(result.model, FEEDS)) < _ROUNDING


def _centred(graph: CentredStream) -> str:
    activation(graph)
    graph.weights["axes"] = np.array([-1], np.int64)
    graph.node("ReduceMean", ["relu", "axes"], "mean")
    graph.node("Sub", ["relu", "mean"], "c")
    graph.weights["U"] = np.linspace(-1.0, 1.0, C) * np.arange(1.0, 6.0)[:, None]  # rows of mean 0
    graph.node("MatMul", ["x", "U"], "again")
    return graph.node("Add", ["c", "again"], "joined")


def test_a_slice_at_the_entry_of_a_stream_goes() -> None:
    compressed = _compressed(_centred)
    assert "Slice" in {node.op_type for node in compressed.graph.node}
    result = onnxfold.convert(compressed, to="rms", check=0)
    assert result.proof is not None
    assert result.proof.decompressed_norms == 1
    assert "Slice" not in {node.op_type for node in result.model.graph.node}
    expected = evaluate(compressed, FEEDS)
    assert relative_error(expected, evaluate(result.model, FEEDS)) < _ROUNDING


def _with_node(
    model: onnx.ModelProto, op_type: str, reads: str, *extra: str, **attributes: Any
) -> onnx.ModelProto:
    """Insert a node between a value and all of its readers."""
    place = next(k for k, node in enumerate(model.graph.node) if reads in node.output) + 1
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == reads:
                node.input[index] = "between"
    made = onnx.helper.make_node(op_type, [reads, *extra], ["between"], "between", **attributes)
    model.graph.node.insert(place, made)
    return model


def _forced(model: onnx.ModelProto, plan: CompressionPlan) -> tuple[onnx.ModelProto, bool]:
    before = prepare(ir.from_proto(model)).info
    edit = Editor(before, copy=True)
    apply(edit, plan, _SETTINGS)
    define_functions(ModelInfo(edit.model), Target.ONNX, WrittenForm.AUTO)
    shown = _prove(before, ModelInfo(edit.model), plan)
    return ir.to_proto(edit.model), not shown.failures


def test_an_activation_in_the_stream_refuses_and_a_channel_added_before_it_is_wrong() -> None:
    """relu(E v) is not E relu(v)."""
    model = _compressed()
    plan = decide(prepare(ir.from_proto(model)).info, _SETTINGS)
    assert _forced(model, plan)[1]
    damaged = _with_node(_compressed(), "Relu", "h")
    refused = decide(prepare(ir.from_proto(damaged)).info, _SETTINGS)
    assert refused.empty
    assert {why.code.value for _, why in refused.refusals} == {"activation"}
    result, proved = _forced(damaged, plan)
    assert not proved
    assert relative_error(evaluate(damaged, FEEDS), evaluate(result, FEEDS)) > _VISIBLE


def test_a_stream_that_is_an_output_refuses() -> None:
    model = _compressed()
    kind = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.DOUBLE, ["batch", T, C - 1])
    model.graph.output.append(kind)
    refused = decide(prepare(ir.from_proto(model)).info, _SETTINGS)
    assert {why.code.value for _, why in refused.refusals} == {"graph_output"}
    plan = decide(prepare(ir.from_proto(_compressed())).info, _SETTINGS)
    assert not _forced(model, plan)[1]


def test_a_weight_that_is_forgotten_fails_the_proof() -> None:
    """A table of d - 1 channels does not fit the others, whatever the plan says."""
    model = _compressed()
    plan = decide(prepare(ir.from_proto(model)).info, _SETTINGS)
    assert len(plan.weights) == 3
    for weight in plan.weights:
        others = tuple(other for other in plan.weights if other != weight)
        assert not _forced(model, replace(plan, weights=others))[1]
