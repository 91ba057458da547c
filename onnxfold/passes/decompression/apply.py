"""Carries out a decompression: longer weights, shapes and values, and norms that read them."""

import numpy as np
import onnx_ir as ir

from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import Editor, redirect, sweep
from onnxfold.passes.base import Settings
from onnxfold.passes.compression.plan import CompressionPlan
from onnxfold.passes.compression.shapes import change_shapes, declare, resize_weight
from onnxfold.passes.norms_plan import named_sites


def apply(edit: Editor, plan: CompressionPlan, settings: Settings) -> None:
    """Give every stream that is named its last channel; E v, which norms read, is then v."""
    del settings
    values, sites = edit.by_ref(), named_sites(edit, plan)
    change_shapes(edit, plan, 1)
    for weight in plan.weights:
        lengthen_weight(values[weight.value], weight.axis)
    for stored in plan.values:
        declare(values[stored.value], stored.axis, 1)
    for entry in plan.entries:
        _replace(values[entry.value])
    for site in sites:
        _replace(site.input)


def lengthen_weight(value: ir.Value, axis: int) -> None:
    """Append minus the sum, taken in float64 and rounded once."""

    def completed(tensor: ir.TensorProtocol) -> Array:
        array = tensor.numpy()
        last = -array.sum(axis=axis, keepdims=True, dtype=np.float64)
        return np.concatenate([array, last.astype(array.dtype)], axis=axis)

    resize_weight(value, axis, 1, completed)


def _replace(value: ir.Value) -> None:
    """Let all readers of x[:-1], or of E v, read x, or v, and take away what nothing reads."""
    node = value.producer()
    operand = None if node is None else node.inputs[0]
    if node is None or operand is None:
        return  # what several norms read was replaced before
    redirect(value, operand)
    sweep([*_behind(node), node])


def _behind(node: ir.Node) -> list[ir.Node]:
    """Return sum(v) and -sum(v) of E v, in order."""
    found: list[ir.Node] = []
    last = node.inputs[1] if node.op_type == "Concat" else None
    while last is not None and (maker := last.producer()) is not None and len(found) < 2:
        found.insert(0, maker)
        last = maker.inputs[0]
    return found
