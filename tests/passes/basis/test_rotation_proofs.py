"""A rotation that forgets a weight, or is another than it says, breaks the model and is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.graph.edit import Editor, change_constant
from onnxfold.graph.operands import known_tensor
from onnxfold.passes.base import ProofOutcome, Settings
from onnxfold.passes.basis.plan import RotatedStream, RotationPlan
from onnxfold.passes.basis.rotate_streams import apply, decide_heads, decide_streams
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.proofs import of_rotation
from onnxfold.proof import Certificate, TurnedWeight, prove
from onnxfold.weights.rotations import RotatedTensor, RotationKind
from tests.passes.basis.wide_streams import FEEDS, WIDTH, attention, plain_rms
from tests.soundness.float64 import evaluate, relative_error

VISIBLE, ROUNDING = 1e-3, 1e-5
SETTINGS = Settings(rotate="hadamard", rotation_seed=1)
Change = Callable[[RotatedStream], RotatedStream]


def carried_out(
    model: onnx.ModelProto, change: Change, proved: Change = lambda stream: stream
) -> tuple[onnx.ModelProto, ProofOutcome]:
    """Carry out a plan that was changed, and prove by what it says, or by another."""
    before = prepare(ir.from_proto(model)).info
    decide = decide_heads if model.graph.name == "heads" else decide_streams
    (stream,) = decide(before, SETTINGS).streams
    plan = RotationPlan((change(stream),))
    edit = Editor(before, copy=True)
    apply(edit, plan, SETTINGS)
    shown = of_rotation(before, ModelInfo(edit.model), RotationPlan((proved(change(stream)),)))
    return ir.to_proto(edit.model), shown


def without(value: str) -> Change:
    def change(stream: RotatedStream) -> RotatedStream:
        kept = tuple(each for each in stream.weights if each.value != value)
        assert len(kept) < len(stream.weights)
        return replace(stream, weights=kept)

    return change


def along(value: str, fiber: Fiber) -> Change:
    def change(stream: RotatedStream) -> RotatedStream:
        changed = (replace(w, fiber=fiber) if w.value == value else w for w in stream.weights)
        return replace(stream, weights=tuple(changed))

    return change


@pytest.mark.parametrize("model", [plain_rms(), plain_rms("Neg"), attention()])
def test_what_is_decided_is_proved_and_right(model: onnx.ModelProto) -> None:
    result, shown = carried_out(model, lambda stream: stream)
    assert shown.failures == ()
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) < ROUNDING


def test_a_stream_that_begins_with_a_norm_includes_what_the_norm_reads() -> None:
    plan = decide_streams(prepare(ir.from_proto(plain_rms("Tanh"))).info, SETTINGS)
    assert not plan.streams
    assert len(plan.refusals) == 4
    assert {why.nodes for _, why in plan.refusals} == {("made.node",)}


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (plain_rms(), without("table")),
        (plain_rms("Neg"), without("table")),
        (plain_rms(), without("down0")),
        (plain_rms(), without("bias1")),
        (plain_rms(), without("up0")),
        (plain_rms(), without("head")),
        (plain_rms(), along("square", Fiber((AxisBlock(1, 1, WIDTH, 1),)))),
        (attention(), without("values")),
        (attention(), without("values.bias")),
        (attention(), without("joined")),
    ],
)
def test_a_forgotten_weight_is_seen_and_refused(model: onnx.ModelProto, change: Change) -> None:
    result, shown = carried_out(model, change)
    assert shown.failures
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) > VISIBLE


@pytest.mark.parametrize("model", [plain_rms(), attention()])
@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"kind": RotationKind.RANDOM}], ids=["seed", "kind"]
)
def test_another_matrix_than_is_said_is_refused(
    model: onnx.ModelProto, other: dict[str, object]
) -> None:
    _, shown = carried_out(model, lambda stream: stream, lambda s: replace(s, **other))  # type: ignore[arg-type]
    assert shown.failures


def test_weights_times_a_matrix_that_is_not_orthogonal_are_refused() -> None:
    """Writers times A and readers times A: x A A' W is not x W."""
    model = plain_rms()
    before = prepare(ir.from_proto(model)).info
    plan = decide_streams(before, SETTINGS)
    (stream,) = plan.streams
    matrix = stream.matrix() @ np.diag(1 + 0.1 * np.arange(WIDTH))
    edit = Editor(before, copy=True)
    values = edit.by_ref()
    for weight in stream.weights:
        value = values[weight.value]
        tensor = RotatedTensor(known_tensor(value), weight.fiber, matrix, weight.value)
        change_constant(value, tensor)
    claims = tuple(TurnedWeight(w.value, w.fiber, matrix) for w in stream.weights)
    shown = prove(before, ModelInfo(edit.model), Certificate(turned=claims))
    assert shown.failures
    result = ir.to_proto(edit.model)
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) > VISIBLE
