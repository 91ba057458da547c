"""Laws that are wrong in one respect, whatever the line: what every test of laws must notice."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, whole_axes
from onnxfold.graph.dims import Shape
from onnxfold.operators.families.transfer import Backward, Carried, Forward, Transfer, ZeroMean
from onnxfold.refusal import Refusal

__all__ = ["ROLES", "AlwaysZeroMean", "Broken", "NeverSeen", "Watched"]


@dataclass(frozen=True)
class Broken:
    """Answers as the family of the table does, but for what a subclass changes."""

    right: Transfer

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return self.right.backward(view, node, output, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return self.right.forward(view, node, index, fiber)


class FirstOperandOnly(Broken):
    """Carrier or writer: forgets that all operands must be centered together."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        return Carried(origin.inputs[:1]) if isinstance(origin, Carried) else origin


class WithoutGuard(Broken):
    """Opaque as carrier: the same fiber of the first operand where the law refuses."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        fits = view.rank(node.inputs[0]) == view.rank(node.outputs[output])
        return Carried(((0, fiber),)) if isinstance(origin, Refusal) and fits else origin


class AxisOffByOne(Broken):
    """Carrier or writer along another axis."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        if not isinstance(origin, Carried) or len(origin.inputs) != 1:
            return origin
        index, inner = origin.inputs[0]
        rank = view.rank(node.inputs[index]) or 0
        turned = whole_axes(
            view.shape(node.inputs[index]) or (), [(a + 1) % rank for a in inner.axes]
        )
        return origin if turned is None else Carried(((index, turned),))


class OtherOperand(Broken):
    """Writer on the wrong side."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        if not isinstance(origin, Carried) or len(origin.inputs) != 1:
            return origin
        index, inner = origin.inputs[0]
        same = len(node.inputs) > 1 and view.rank(node.inputs[0]) == view.rank(node.inputs[1])
        return Carried(((1 - index, inner),)) if same and index < 2 else origin


class NeverSeen(Broken):
    """Exact, or passing a shift on, as a sink."""

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ()


class AlwaysZeroMean(Broken):
    """Anything as zero mean."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return ZeroMean()


ROLES: tuple[type[Broken], ...] = (
    AlwaysZeroMean,
    AxisOffByOne,
    FirstOperandOnly,
    NeverSeen,
    OtherOperand,
    WithoutGuard,
)


@dataclass
class Watched:
    """A broken family, and whether it ever answered differently from the right one."""

    right: Transfer
    wrong: Broken
    differed: bool = field(default=False)

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        said = self.wrong.backward(view, node, output, fiber)
        asked = bool(fiber.blocks) and _has_room(view.shape(node.outputs[output]), fiber)
        counts = asked and _may_be_folded(view, node, said)
        self.differed |= counts and said != self.right.backward(view, node, output, fiber)
        return said

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        said = self.wrong.forward(view, node, index, fiber)
        self.differed |= bool(fiber.blocks) and said != self.right.forward(view, node, index, fiber)
        return said


def _may_be_folded(view: ModelInfo, node: ir.Node, said: Backward) -> bool:
    """Whether a fold may depend on the answer, so that a graph can expose an error.

    No fold depends on a mask, a shape or indices, which are never centered, nor on a fiber that the
    operand cannot contain: nothing downstream of the operand can follow it.
    """
    if not isinstance(said, Carried):
        return True
    followed = [(node.inputs[index], inner) for index, inner in said.inputs]
    dtypes = [None if value is None else value.dtype for value, _ in followed]
    if dtypes and all(d is not None and not d.is_floating_point() for d in dtypes):
        return False
    return all(_has_room(view.shape(value), inner) for value, inner in followed)


def _has_room(shape: Shape | None, fiber: Fiber) -> bool:
    return shape is None or all(_holds(shape, block) for block in fiber.blocks)


def _holds(shape: Shape, block: AxisBlock) -> bool:
    if block.axis >= len(shape):
        return False
    dim, digits = shape[block.axis], block.size * block.inner
    if not isinstance(dim, int):
        return False  # no weight has an axis of a length that is not known
    return dim % digits == 0 if block.outer is None else dim == block.outer * digits
