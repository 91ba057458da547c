"""Linear layers: products with a weight.  Centring the weight centres the output, for free.

MatMul, Gemm, Conv, ConvTranspose and Einsum are linear in each factor alone, and an axis of the
output comes from exactly one factor.  P is carried into that factor, be it a weight (a writer) or
an activation (attention times values, token mixing); the other factor is read exactly.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Shape
from onnxfold.graph.einsum import einsum_labels
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    along_broadcast,
    broken,
    refuse,
    unknown_shape,
)
from onnxfold.refusal import RefusalCode


@dataclass(frozen=True, slots=True)
class MatMul:
    """Y = A B: columns of Y come from B, rows from A; P (A B) = A (P B), or (P A) B."""

    fused: bool = False

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        shapes = _shapes(view, node)
        if shapes is None:
            return unknown_shape(node)
        a, b, y = shapes
        if self.fused and not _plain(node):
            return refuse(RefusalCode.UNKNOWN_OP, node, "transposes batches, which is not followed")
        if len(a) == 1 or len(b) == 1:
            return self._vector_backward(node, fiber, a, b)
        row, column = len(y) - 2, len(y) - 1
        if column in fiber.axes and row in fiber.axes:
            return broken(node, fiber)
        index, operand = (1, b) if column in fiber.axes else (0, a)
        if not {row, column} & set(fiber.axes):
            index, operand = (0, a) if _lacks_batch(fiber, y, b) else (1, b)
            if not _lacks_batch(fiber, y, a if index else b):
                return broken(node, fiber)
        elif not _lacks_batch(fiber, y, a if index else b, kept=(row, column)):
            return broken(node, fiber)
        inner = _into_operand(fiber, y, operand, self._swap(node, index))
        return unknown_shape(node) if inner is None else Carried(((index, inner),))

    def _vector_backward(self, node: ir.Node, fiber: Fiber, a: Shape, b: Shape) -> Backward:
        """[K] x [..., K, N] -> [..., N] and [..., M, K] x [K] -> [..., M]; only the plain cases."""
        if self.fused:
            return broken(node, fiber)
        if len(a) == 1 and len(b) == 2 and fiber.axes == (0,):
            return Carried(((1, fiber.moved({0: 1})),))
        if len(b) == 1 and len(a) >= 2:
            return Carried(((0, fiber),))
        return broken(node, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        shapes = _shapes(view, node)
        if shapes is None or index > 1:
            return None
        a, b, y = shapes
        if len(a) == 1 or len(b) == 1:
            return self._vector_forward(index, fiber, a, b)
        operand = (a, b)[index]
        axes = _swapped(len(operand)) if self._swap(node, index) else {}
        moved = fiber.moved({axis: axes.get(axis, axis) for axis in fiber.axes})
        contracted = len(operand) - 1 if index == 0 else len(operand) - 2
        if contracted in moved.axes:
            return None
        return ((0, moved.shifted(len(y) - len(operand))),)

    def _vector_forward(self, index: int, fiber: Fiber, a: Shape, b: Shape) -> Forward:
        if len(a) == 1:
            columns = index == 1 and len(b) == 2 and fiber.axes == (1,)
            return ((0, fiber.moved({1: 0})),) if columns else None
        return ((0, fiber),) if index == 0 and len(a) - 1 not in fiber.axes else None

    def _swap(self, node: ir.Node, index: int) -> bool:
        return self.fused and node.attributes.get_int("transB" if index else "transA", 0) != 0


def _plain(node: ir.Node) -> bool:
    return not any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB"))


def _shapes(view: ModelInfo, node: ir.Node) -> tuple[Shape, Shape, Shape] | None:
    if len(node.inputs) < 2:
        return None  # no schema says how many a contrib operator has
    a, b = view.shape(node.inputs[0]), view.shape(node.inputs[1])
    y = view.shape(node.outputs[0])
    return None if a is None or b is None or y is None else (a, b, y)


def _lacks_batch(fiber: Fiber, y: Shape, operand: Shape, kept: tuple[int, ...] = ()) -> bool:
    """Whether the operand does not vary along the batch axes of the fiber."""
    offset = len(y) - len(operand)
    batch = [axis for axis in fiber.axes if axis < len(y) - 2 and axis not in kept]
    return all(axis < offset or operand[axis - offset] == 1 for axis in batch)


def _swapped(rank: int) -> dict[int, int]:
    return {rank - 1: rank - 2, rank - 2: rank - 1}


def _into_operand(fiber: Fiber, y: Shape, operand: Shape, swap: bool) -> Fiber | None:
    """The fiber in a matrix operand: its batch axes broadcast, its matrix axes keep their place."""
    rank = len(operand)
    shown = list(operand)
    if swap:
        shown[-1], shown[-2] = shown[-2], shown[-1]
    inner = along_broadcast(fiber, y, tuple(shown))
    if inner is None or not swap:
        return inner
    axes = _swapped(rank)
    return inner.moved({axis: axes.get(axis, axis) for axis in inner.axes})


@dataclass(frozen=True, slots=True)
class Gemm:
    """Y = alpha A' B' + beta C: columns from B and C, rows from A and C."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if len(fiber.axes) != 1:
            return broken(node, fiber)
        axis = fiber.axes[0]
        index = 1 if axis == 1 else 0
        swap = node.attributes.get_int("transB" if index else "transA", 0) != 0
        carried = [(index, fiber.moved({axis: 1 - axis}) if swap else fiber)]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            y, c = view.shape(node.outputs[0]), view.shape(bias)
            if y is None or c is None:
                return unknown_shape(node)
            inner = along_broadcast(fiber, y, c)
            if inner is None:
                return unknown_shape(node)
            carried.append((2, inner))
        return Carried(tuple(carried))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        if index == 2:
            rank = view.rank(node.inputs[2])
            if rank is None or not fiber.blocks:
                return None
            return ((0, fiber.shifted(2 - rank)),)
        swap = node.attributes.get_int("transB" if index else "transA", 0) != 0
        moved = fiber.moved({axis: 1 - axis for axis in fiber.axes}) if swap else fiber
        return ((0, moved),) if moved.axes == (index,) else None


@dataclass(frozen=True, slots=True)
class Convolution:
    """Y = W * X + b with one group: channels of Y are an axis of W and of b."""

    weight_axis: int  # 0 for Conv [out, in, ...], 1 for ConvTranspose [in, out, ...]

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if node.attributes.get_int("group", 1) != 1:
            return refuse(
                RefusalCode.GROUPED_CONVOLUTION, node, "is a grouped convolution: channels differ"
            )
        if fiber.axes != (1,):
            return broken(node, fiber)
        carried = [(1, fiber.moved({1: self.weight_axis}))]
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            carried.append((2, fiber.moved({1: 0})))
        return Carried(tuple(carried))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        axis = {1: self.weight_axis, 2: 0}.get(index)
        if axis is None or fiber.axes != (axis,):
            return None
        return ((0, fiber.moved({axis: 1})),)


@dataclass(frozen=True, slots=True)
class Einsum:
    """Two factors: a label of the output that stands in one factor only is carried into it."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        terms = einsum_labels(node, [view.rank(factor) for factor in node.inputs])
        if terms is None:
            return refuse(RefusalCode.UNKNOWN_OP, node, "has an equation that is not followed")
        factors, result = terms
        if max(fiber.axes, default=-1) >= len(result):
            return broken(node, fiber)  # the model claims another rank than the equation gives
        labels = {axis: result[axis] for axis in fiber.axes}
        for index, factor in enumerate(factors):
            others = "".join(factors[:index] + factors[index + 1 :])
            if all(factor.count(x) == 1 and x not in others for x in labels.values()):
                moved = fiber.moved({axis: factor.index(x) for axis, x in labels.items()})
                return Carried(((index, moved),))
        return broken(node, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        terms = einsum_labels(node, [view.rank(factor) for factor in node.inputs])
        if terms is None:
            return None
        factors, result = terms
        if max(fiber.axes, default=-1) >= len(factors[index]):
            return None
        labels = {axis: factors[index][axis] for axis in fiber.axes}
        if any(result.count(label) != 1 for label in labels.values()):
            return None
        return ((0, fiber.moved({a: result.index(x) for a, x in labels.items()})),)
