"""Carries out a change of readers: other rows of weights, and norms of d - 1 channels, or d."""

import numpy as np
import onnx_ir as ir

from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import Editor, Lowered, redirect, sweep
from onnxfold.graph.operands import known_operand, known_producer
from onnxfold.operators.functions import Affine, Statistics, call, op_name
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.options import Target
from onnxfold.passes.base import Settings
from onnxfold.passes.compression import shapes
from onnxfold.passes.compression.apply import shorten_weight
from onnxfold.passes.decompression.apply import lengthen_weight
from onnxfold.passes.readers.plan import ReadersPlan
from onnxfold.weights.edited import unrounded


def apply(edit: Editor, plan: ReadersPlan, settings: Settings) -> None:
    """Let norms give, and linear layers read, one channel less, or again all."""
    values = edit.by_ref()
    shapes.change_shapes(edit, plan.between, plan.more)
    for layer in plan.layers:
        _change_layer(values[layer.value], layer.axis, plan.more)
    for weight in plan.between.weights:
        resize = shorten_weight if plan.more < 0 else lengthen_weight
        resize(values[weight.value], weight.axis)
    for stored in (*plan.between.values, *plan.layouts):
        shapes.declare(values[stored.value], stored.axis, plan.more)
    for start in plan.norms:
        if plan.more < 0:
            _shorten_norm(edit, values[start], settings.target)
        else:
            _read_all(values[start])


def _change_layer(value: ir.Value, axis: int, more: int) -> None:
    """Store E' A, taken in float64 and rounded once, or A and a row of 0."""

    def less(tensor: ir.TensorProtocol) -> Array:
        wide = unrounded(tensor).astype(np.float64)
        rest, last = np.split(wide, [wide.shape[axis] - 1], axis=axis)
        return np.asarray((rest - last).astype(tensor.dtype.numpy()))

    def padded(tensor: ir.TensorProtocol) -> Array:
        array = tensor.numpy()
        return np.concatenate([array, np.zeros_like(array.take([0], axis=axis))], axis=axis)

    shapes.resize_weight(value, axis, more, less if more < 0 else padded)


def _shorten_norm(edit: Editor, value: ir.Value, target: Target) -> None:
    """Let a CRMSNorm give no more channels than it reads: as a call, or by a Slice behind it.

    ONNX Runtime makes one operator of a norm that is spelled out only where it gives all channels.
    """
    node = known_producer(value)
    x = known_operand(node, 0)
    epsilon, new = node.attributes.get_float("epsilon", 0.0), NewNodes(edit.info.opset)
    if target is Target.KERNELS:
        name = op_name(statistics=Statistics.CRMS, affine=Affine.NONE)
        result = new.add(call(name, [x], epsilon=epsilon))
    else:
        full = new.add(ir.node(node.op_type, node.inputs, node.attributes, domain=node.domain))
        full.name, full.shape, full.type = f"{value.name}.all", value.shape, value.type
        result = shapes.slice_off_last(new, full, -1, f"{node.name}.short")
        new.nodes[-1].name = f"{node.name}.short"
    new.nodes[0].name = node.name
    axis = (len(value.shape) if value.shape is not None else 0) - 1
    edit.stand_in(Lowered.of(new, (value, result)), node, (node,))
    shapes.declare(result, axis, -1)


def _read_all(value: ir.Value) -> None:
    """Let all readers of y[:-1] read y."""
    node = known_producer(value)
    redirect(value, known_operand(node, 0))
    sweep([node])
