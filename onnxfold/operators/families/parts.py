"""Parts of a tensor, by Split and Slice: off the fiber they keep all sets, along it whole sets.

Gates of a recurrent layer are such parts of one product, each with a separate norm.
"""

from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.operators.families.layout import sizes_changed
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    broken,
    unknown_shape,
)


class Split:
    """P split(x)_i = split(P' x)_i: off the fiber P' is P, otherwise the sets of all parts.

    Parts of equal size along the fiber are its runs: such as gates that each have a separate norm.
    """

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        rank = view.rank(node.inputs[0])
        if rank is None:
            return unknown_shape(node)
        axis = node.attributes.get_int("axis", 0) % rank
        if axis not in fiber.axes:
            return Carried(((0, fiber),))
        parts = _equal_parts(view, node, axis)
        if parts is None:
            return broken(node, fiber)
        return Carried(((0, _repeated(fiber, axis, parts)),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        if index != 0:
            return None
        rank = view.rank(node.inputs[0])
        if rank is None:
            return None
        axis = node.attributes.get_int("axis", 0) % rank
        within = fiber
        if axis in fiber.axes:
            parts = _equal_parts(view, node, axis)
            taken = None if parts is None else _taken(fiber, axis, parts)
            if taken is None:
                return None
            within = taken
        return tuple((position, within) for position in range(len(node.outputs)))


def _equal_parts(view: ModelInfo, node: ir.Node, axis: int) -> int | None:
    """Return into how many equal parts an axis of known size is split; None otherwise."""
    whole = view.dim(node.inputs[0], axis)
    sizes = {view.dim(part, axis) for part in node.outputs}
    number = len(node.outputs)
    if not isinstance(whole, int) or len(sizes) != 1:
        return None
    (size,) = sizes
    return number if isinstance(size, int) and size * number == whole else None


def _repeated(fiber: Fiber, axis: int, parts: int) -> Fiber:
    """Return the fiber of the whole whose parts each have this one."""
    return Fiber.of(
        replace(block, outer=None if block.outer is None else block.outer * parts)
        if block.axis == axis
        else block
        for block in fiber.blocks
    )


def _taken(fiber: Fiber, axis: int, parts: int) -> Fiber | None:
    """Return the fiber of each part; None if a set is in several."""
    blocks = []
    for block in fiber.blocks:
        if block.axis != axis:
            blocks.append(block)
        elif block.outer is None or block.outer % parts:
            return None
        else:
            blocks.append(replace(block, outer=block.outer // parts))
    return Fiber.of(blocks)


class Slice:
    """Slice along other axes picks whole sets; along the fiber it must start and end between sets.

    P slice(x) = slice(P' x), P' over the sets of all of x, of which the slice keeps some.
    """

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        cut = _cut(view, node, fiber)
        if cut is None:
            return unknown_shape(node)
        blocks = [_in_whole(view, node, b) if b.axis in cut else b for b in fiber.blocks]
        whole = _all_known(blocks)
        return broken(node, fiber) if whole is None else Carried(((0, whole),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        cut = _cut(view, node, fiber)
        if index != 0 or cut is None:
            return None
        part = _all_known([_in_part(view, node, b) if b.axis in cut else b for b in fiber.blocks])
        return None if part is None else ((0, part),)


def _all_known(blocks: list[AxisBlock | None]) -> Fiber | None:
    known = [block for block in blocks if block is not None]
    return Fiber.of(known) if len(known) == len(blocks) else None


def _cut(view: ModelInfo, node: ir.Node, fiber: Fiber) -> set[int] | None:
    """Return the axes of the fiber that may become shorter.

    The others stay whole, possibly reversed.
    """
    touched, axes = sizes_changed(view, node), sliced_axes(view, node)
    if touched is None or axes is None:
        return None
    return set(axes) & set(touched) & set(fiber.axes)


def _in_whole(view: ModelInfo, node: ir.Node, block: AxisBlock) -> AxisBlock | None:
    """Return the block of the data for a block of the slice; None if sets are cut."""
    part, period = part_along(view, node, block.axis), block.inner * block.size
    if part is None or any(end % period for end in part):
        return None
    return replace(block, outer=part[2] // period)


def _in_part(view: ModelInfo, node: ir.Node, block: AxisBlock) -> AxisBlock | None:
    """Return the block of the slice; None if sets are cut."""
    part, period = part_along(view, node, block.axis), block.inner * block.size
    if part is None or any(end % period for end in part[:2]):
        return None
    return replace(block, outer=(part[1] - part[0]) // period)


def part_along(view: ModelInfo, node: ir.Node, axis: int) -> tuple[int, int, int] | None:
    """Return the start and end of a Slice with step 1, and the size of the axis, or None."""
    whole, size = view.dim(node.inputs[0], axis), view.dim(node.outputs[0], axis)
    axes = sliced_axes(view, node)
    if len(node.inputs) > 1:
        starts = view.integers(node.inputs[1])
    else:
        starts = tuple(node.attributes.get_ints("starts", ()))
    if axes is None or starts is None or not isinstance(whole, int) or not isinstance(size, int):
        return None
    if not _in_order(view, node, axis):
        return None
    begin = starts[axes.index(axis)]
    start = min(max(begin + (whole if begin < 0 else 0), 0), whole)
    return (start, start + size, whole) if start + size <= whole else None


def cut_axes(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes on which a Slice may drop or reverse elements, or None if unknown."""
    touched, axes = sizes_changed(view, node), sliced_axes(view, node)
    if touched is None or axes is None:
        return None
    return tuple(axis for axis in axes if axis in touched or not _in_order(view, node, axis))


def sliced_axes(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes that a Slice names, including those kept whole, or None if unknown."""
    rank = view.rank(node.inputs[0])
    axes = view.axes(node, 3)
    if rank is None or axes is None:
        return None
    if axes:
        return tuple(axis % rank for axis in axes)
    starts = node.attributes.get_ints("starts", None)
    if starts is not None:
        return tuple(range(len(starts)))
    length = view.dim(node.inputs[1], 0) if len(node.inputs) > 1 else None
    return tuple(range(length)) if isinstance(length, int) else None


def may_reverse(view: ModelInfo, node: ir.Node, digit: Fiber) -> bool:
    """Whether a Slice may reverse the order on the digit's axis."""
    axes = sliced_axes(view, node)
    return axes is None or not all(
        _in_order(view, node, axis) for axis in set(axes) & set(digit.axes)
    )


def _in_order(view: ModelInfo, node: ir.Node, axis: int) -> bool:
    """Whether a Slice keeps the order on an axis, with step 1."""
    operand = node.inputs[4] if len(node.inputs) > 4 else None
    if operand is None:
        return True
    steps, axes = view.integers(operand), sliced_axes(view, node)
    return steps is not None and axes is not None and steps[axes.index(axis)] == 1
