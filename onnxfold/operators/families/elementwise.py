"""Elementwise operators: sums, scalings by what is constant along the fiber, and masks."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, whole_axes
from onnxfold.operators.transfer import (
    Carried,
    Pulled,
    along_broadcast,
    broken,
    constant_along,
    refuse,
    unknown_shape,
)
from onnxfold.refusal import RefusalCode

__all__ = ["Additive", "Cast", "Dropout", "Masked", "Scaled"]

_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


def _carry(
    view: ModelInfo, node: ir.Node, output: int, fiber: Fiber, indices: tuple[int, ...]
) -> Pulled:
    """Carry the fiber into each operand of an operator that broadcasts."""
    result = view.shape(node.outputs[output])
    carried = []
    for index in indices:
        operand = view.shape(node.inputs[index])
        if result is None or operand is None:
            return unknown_shape(node)
        inner = along_broadcast(fiber, result, operand)
        if inner is None:
            return unknown_shape(node)
        carried.append((index, inner))
    return Carried(tuple(carried))


def _push_broadcast(
    view: ModelInfo, node: ir.Node, index: int, fiber: Fiber
) -> tuple[tuple[int, Fiber], ...] | None:
    result, operand = view.shape(node.outputs[0]), view.shape(node.inputs[index])
    if result is None or operand is None:
        return None
    offset = len(result) - len(operand)
    if fiber.blocks:
        return ((0, fiber.shifted(offset)),)
    # A set of one element: any change of it is constant along every axis that broadcasting adds.
    added = [
        axis
        for axis, dim in enumerate(result)
        if isinstance(dim, int) and (axis < offset or operand[axis - offset] == 1)
    ]
    everywhere = whole_axes(result, added)
    return None if everywhere is None else ((0, everywhere),)


@dataclass(frozen=True, slots=True)
class Additive:
    """Sums with fixed signs: P(a + b) = P a + P b."""

    def pull(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        return _carry(view, node, output, fiber, tuple(range(len(node.inputs))))

    def push(
        self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber
    ) -> tuple[tuple[int, Fiber], ...] | None:
        return _push_broadcast(view, node, index, fiber)


@dataclass(frozen=True, slots=True)
class Cast:
    """A change of the floating type: commutes with P up to the rounding that the model has."""

    def pull(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        source, target = node.inputs[0], node.outputs[0]
        if source is None or source.dtype not in _FLOATS:
            return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts from a non-floating type")
        if _target(node) not in _FLOATS and target.dtype not in _FLOATS:
            return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts to a non-floating type")
        return Carried(((0, fiber),))

    def push(
        self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber
    ) -> tuple[tuple[int, Fiber], ...] | None:
        return ((0, fiber),) if index == 0 else ()  # CastLike reads only the type of its second


def _target(node: ir.Node) -> ir.DataType | None:
    to = node.attributes.get("to")
    if to is not None and not to.is_ref():
        return ir.DataType(to.as_int())
    like = node.inputs[1] if len(node.inputs) > 1 else None
    return None if like is None else like.dtype


@dataclass(frozen=True, slots=True)
class Dropout:
    """The identity at inference; in training mode nothing is known."""

    def pull(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is not None and view.scalar(training) != 0.0:
            return refuse(RefusalCode.ACTIVATION, node, "may run in training mode")
        if output != 0 or (view.opset < 7 and node.attributes.get_int("is_test", 0) == 0):
            return refuse(RefusalCode.ACTIVATION, node, "may run in training mode")
        return Carried(((0, fiber),))

    def push(
        self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber
    ) -> tuple[tuple[int, Fiber], ...] | None:
        return ((0, fiber),) if index == 0 else None


@dataclass(frozen=True, slots=True)
class Scaled:
    """Products with one factor s constant along the fiber: P(s * x) = s * P x (x / s alike)."""

    division: bool = False

    def pull(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        result = view.shape(node.outputs[output])
        shapes = [view.shape(operand) for operand in node.inputs]
        if result is None or len(shapes) != 2 or None in shapes:
            return unknown_shape(node)
        for index in (0,) if self.division else (0, 1):
            other = shapes[1 - index]
            if other is not None and constant_along(fiber, result, other):
                return _carry(view, node, output, fiber, (index,))
        return refuse(
            RefusalCode.VARIES_ALONG_FIBER,
            node,
            "multiplies or divides by what varies along the normalised elements",
        )

    def push(
        self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber
    ) -> tuple[tuple[int, Fiber], ...] | None:
        return _push_broadcast(view, node, index, fiber)


@dataclass(frozen=True, slots=True)
class Masked:
    """Where with a mask constant along the fiber: P where(m, a, b) = where(m, P a, P b)."""

    def pull(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        result, mask = view.shape(node.outputs[output]), view.shape(node.inputs[0])
        if result is None or mask is None:
            return unknown_shape(node)
        if not constant_along(fiber, result, mask):
            return broken(node, fiber)
        return _carry(view, node, output, fiber, (1, 2))

    def push(
        self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber
    ) -> tuple[tuple[int, Fiber], ...] | None:
        return None if index == 0 else _push_broadcast(view, node, index, fiber)
