"""Apply scale fusions: linear layers absorb the operators after them, which are removed."""

from dataclasses import replace

from onnxfold.errors import InvariantError
from onnxfold.graph.edit import Editor, inherit, redirect, sweep
from onnxfold.graph.operands import known_operand, known_producer
from onnxfold.passes.base import Settings
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.scales.plan import ScaleFusion, ScalesPlan
from onnxfold.passes.scales.writer import ChannelOp, channel_op, embedded
from onnxfold.weights.edits import Scale, Shift


def apply(edit: Editor, plan: ScalesPlan, settings: Settings) -> None:
    """Apply the fusions in order: a later one scales what an earlier one has added."""
    del settings  # the moves are already decided
    values = edit.info.by_ref()
    made: list[tuple[ScaleFusion, ChannelOp]] = []
    for fusion in plan.fusions:
        op = channel_op(edit.info, known_producer(values[fusion.output]))
        if op is None:
            raise InvariantError(f"'{fusion.output}' is no product or sum with a constant")
        made.append((fusion, replace(op, node=edit.node(op.node))))
    places = PlaceEditor(edit)
    for fusion, op in made:
        _do_before(places, fusion, op)


def _do_before(places: PlaceEditor, fusion: ScaleFusion, op: ChannelOp) -> None:
    """Change the constants before a scale, and remove the scale."""
    for place in fusion.scaled:
        if op.scale is not None:
            scale = embedded(op.scale, fusion.part, place.channels.size)
            places.append(place, Scale(place.channels, scale))
    if fusion.shifted is not None and op.shift is not None:
        channels = fusion.shifted.channels
        shift = embedded(op.shift, fusion.part, channels.size, neutral=0.0)
        places.append(fusion.shifted, Shift(channels, shift))
    start, end = known_operand(op.node, op.index), op.node.outputs[0]
    operands = list(op.node.inputs)
    redirect(end, start, outputs=True)
    sweep([op.node])
    for operand in operands:
        places.edit.drop_if_unread(operand)
    inherit(end, start)
