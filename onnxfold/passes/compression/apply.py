"""Carries out a compression: shorter weights, shapes and values, and CRMSNorms."""

import numpy as np
import onnx_ir as ir

from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import Editor, Lowered, set_input
from onnxfold.graph.operands import known_producer
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.passes.base import Settings
from onnxfold.passes.compression import shapes
from onnxfold.passes.compression.plan import CompressionPlan, Shortened
from onnxfold.passes.norms_plan import named_sites
from onnxfold.targets.lowering import TargetLowering


def apply(edit: Editor, plan: CompressionPlan, settings: Settings) -> None:
    """Leave out the last channel of every stream that is named; norms give it back."""
    values = edit.by_ref()
    sites = named_sites(edit, plan)
    lowering = TargetLowering(edit.info, settings.target)
    shapes.change_shapes(edit, plan, -1)
    for weight in plan.weights:
        shorten_weight(values[weight.value], weight.axis)
    for stored in plan.values:
        shapes.declare(values[stored.value], stored.axis, -1)
    entries = {
        values[entry.value]: _enter(edit, values[entry.value], entry) for entry in plan.entries
    }
    for reader in plan.entering:
        node = known_producer(values[reader.node])
        operand = node.inputs[reader.index]
        if operand in entries:
            set_input(node, reader.index, entries[operand])
    for site in sites:
        x = entries.get(site.input, site.input)
        edit.stand_in(lowering.compressed(site, x), site.last, site.nodes)


def shorten_weight(value: ir.Value, axis: int) -> None:
    """Leave out the last element along an axis."""

    def kept(tensor: ir.TensorProtocol) -> Array:
        array = tensor.numpy()
        return np.ascontiguousarray(array.take(range(array.shape[axis] - 1), axis=axis))

    shapes.resize_weight(value, axis, -1, kept)


def _enter(edit: Editor, value: ir.Value, entry: Shortened) -> ir.Value:
    """Return a value without its last channel, by a Slice behind it."""
    name = f"{value.name}.compressed"
    new = NewNodes(edit.info.opset)
    output = shapes.slice_off_last(new, value, entry.axis, name)
    output.name, output.type, new.nodes[0].name = name, value.type, name
    output.shape = None if value.shape is None else value.shape.copy()
    shapes.declare(output, entry.axis, -1)
    edit.insert_behind(value, Lowered.of(new))
    return output
