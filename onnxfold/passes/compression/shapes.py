"""Shapes that Reshape and Expand are told: their entry for the channels becomes one less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.edit import Editor, insert_before, set_input
from onnxfold.refusal import Refusal, RefusalCode

__all__ = ["change_shape", "names_size", "refuse_shape"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where the entry of an axis is constant: operand ``part`` of a Concat, None for all of it."""

    part: int | None
    numbers: npt.NDArray[np.generic]
    position: int


def names_size(info: ModelInfo, node: ir.Node, axis: int, size: int) -> bool:
    """Whether a node is told a shape that does not follow from what it reads."""
    if node.domain or node.op_type not in ("Reshape", "Expand"):
        return False
    entry = _entry(info, node, axis)
    return entry is None or int(entry.numbers[entry.position]) == size


def refuse_shape(info: ModelInfo, node: ir.Node, axis: int, size: int) -> Refusal | None:
    """Say why the shape that a node is told cannot be changed, or None."""
    del size
    if _entry(info, node, axis) is not None:
        return None
    label = node_label(node)
    sentence = f"{operator(node)} '{label}' is told a size of channels that is computed"
    return Refusal(RefusalCode.UNKNOWN_SHAPE, sentence, (label,))


def _entry(info: ModelInfo, node: ir.Node, axis: int) -> _Entry | None:
    shape = node.inputs[1] if len(node.inputs) > 1 else None
    if shape is None:
        return None
    whole = info.array(shape)
    if whole is not None:
        # Expand aligns its shape from the right.
        rank = info.rank(node.outputs[0]) or whole.size
        return _Entry(None, whole, axis - (rank - whole.size))
    maker = shape.producer()
    if maker is None or maker.op_type != "Concat" or maker.domain:
        return None
    start = 0
    for part, operand in enumerate(maker.inputs):
        length = info.dim(operand, 0)
        if operand is None or not isinstance(length, int):
            return None
        if start <= axis < start + length:
            numbers = info.array(operand)
            return None if numbers is None else _Entry(part, numbers, axis - start)
        start += length
    return None


def change_shape(edit: Editor, info: ModelInfo, node: ir.Node, axis: int) -> None:
    """Let a node of the edited model read a shape with one channel less.

    ``info``: of the version, in which ``node`` is what the edited one comes from.
    """
    entry, twin = _entry(info, node, axis), edit.node(node)
    shape = twin.inputs[1]
    if entry is None or shape is None:
        raise InvariantError(f"node '{node_label(node)}' is told no shape")
    numbers = entry.numbers.copy()
    numbers[entry.position] -= 1
    less = edit.new_constant(twin.outputs[0], ir.tensor(numbers), f"{shape.name}.compressed")
    if entry.part is None:
        set_input(twin, 1, less)
        return
    maker = shape.producer()
    if maker is None:
        raise InvariantError(f"'{shape.name}' is computed by no node")
    parts = [less if part == entry.part else value for part, value in enumerate(maker.inputs)]
    joined = ir.node("Concat", parts, {"axis": 0}, name=edit.unused(f"{maker.name}.compressed"))
    joined.outputs[0].name = edit.unused(f"{shape.name}.compressed")
    joined.outputs[0].type, joined.outputs[0].shape = shape.type, shape.shape
    insert_before(twin, joined)
    set_input(twin, 1, joined.outputs[0])
