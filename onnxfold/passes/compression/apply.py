"""Carries out a compression: shorter weights, shapes and values, and CRMSNorms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import constant_tensor
from onnxfold.graph.constants import weight_value
from onnxfold.graph.edit import Editor, Lowered, change_constant, set_input
from onnxfold.norms import find_norms
from onnxfold.passes.base import Settings
from onnxfold.passes.compression.plan import CompressionPlan, Shortened
from onnxfold.passes.compression.shapes import change_shapes, declare
from onnxfold.passes.lower.targets import TargetLowering


def apply(edit: Editor, plan: CompressionPlan, settings: Settings) -> bool:
    """Leave out the last channel of every stream that is named; norms give it back."""
    values = edit.by_ref()
    sites = [(edit.info.ref(site.output), site.within(edit)) for site in find_norms(edit.info)]
    lowering = TargetLowering(edit.info, settings.target)
    change_shapes(edit, plan, -1)
    for weight in plan.weights:
        shorten_weight(values[weight.value], weight.axis)
    for stored in plan.values:
        declare(values[stored.value], stored.axis, -1)
    entries = {
        values[entry.value]: _enter(edit, values[entry.value], entry) for entry in plan.entries
    }
    for reader in plan.entering:
        node = values[reader.node].producer()
        operand = None if node is None else node.inputs[reader.index]
        if node is not None and operand in entries:
            set_input(node, reader.index, entries[operand])
    wanted = set(plan.norms)
    for ref, site in sites:
        if ref in wanted:
            x = entries.get(site.input, site.input)
            edit.stand_in(lowering.compressed(site, x), site.last, site.nodes)
    return not plan.empty


def shorten_weight(value: ir.Value, axis: int) -> None:
    """Leave out the last element along an axis."""
    tensor = constant_tensor(value)
    if tensor is None:
        raise InvariantError(f"the plan shortens '{value.name}', which is no weight")
    shape = _less(tuple(tensor.shape.numpy()), axis)

    def kept() -> ir.TensorProtocol:
        array = np.ascontiguousarray(tensor.numpy().take(range(shape[axis]), axis=axis))
        return ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)

    change_constant(
        value, ir.LazyTensor(kept, dtype=tensor.dtype, shape=ir.Shape(shape), name=tensor.name)
    )
    value.shape = ir.Shape(shape)


def _less(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(size - (place == axis) for place, size in enumerate(shape))


def _enter(edit: Editor, value: ir.Value, entry: Shortened) -> ir.Value:
    """Return a value without its last channel, by a Slice behind it."""
    name = f"{value.name}.compressed"
    numbers = {"start": 0, "end": -1, "axis": entry.axis}
    made = [weight_value(f"{name}.{role}", np.array([k], np.int64)) for role, k in numbers.items()]
    node = ir.node("Slice", [value, *made], name=name)
    output = node.outputs[0]
    output.name, output.type = name, value.type
    output.shape = None if value.shape is None else value.shape.copy()
    declare(output, entry.axis, -1)
    edit.insert_behind(value, Lowered((node,), (), tuple(made)))
    return output
