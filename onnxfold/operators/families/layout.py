"""Layout operators: they move, copy or drop elements; the fiber is followed, never guessed.

All of them are linear and act alike on every element of a set, so P commutes with them as long as
each set of the output's fiber is the image of one set of the input's.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, follow_reshape
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    ZeroMean,
    along_broadcast,
    broken,
    refuse,
    unknown_shape,
)
from onnxfold.refusal import RefusalCode


@dataclass(frozen=True, slots=True)
class Transpose:
    """P transpose(x) = transpose(P' x): output axis i is input axis perm[i]."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        perm = _permutation(view, node)
        if perm is None:
            return unknown_shape(node)
        return Carried(((0, fiber.moved(dict(enumerate(perm)))),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        perm = _permutation(view, node)
        if perm is None:
            return None
        return ((0, fiber.moved({source: target for target, source in enumerate(perm)})),)


def _permutation(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    rank = view.rank(node.inputs[0])
    if rank is None:
        return None
    axes = tuple(range(rank))
    perm = node.attributes.get_ints("perm", None)
    if perm is None:
        return axes[::-1]
    # Runtimes do not agree on one that leaves axes out.
    return tuple(perm) if tuple(sorted(perm)) == axes else None


@dataclass(frozen=True, slots=True)
class Reshape:
    """Reshape, Flatten, Squeeze and Unsqueeze keep row-major order: the digits are found again."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if source is None or target is None:
            return unknown_shape(node)
        inner = follow_reshape(fiber, target, source)
        return broken(node, fiber) if inner is None else Carried(((0, inner),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if index != 0 or source is None or target is None:
            return None
        outer = follow_reshape(fiber, source, target)
        return None if outer is None else ((0, outer),)


@dataclass(frozen=True, slots=True)
class Expand:
    """P expand(x) = expand(P' x), P' over those axes of the fiber that x has itself."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if source is None or target is None:
            return unknown_shape(node)
        inner = along_broadcast(fiber, target, source)
        return unknown_shape(node) if inner is None else Carried(((0, inner),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if index != 0 or source is None or target is None:
            return None
        return ((0, fiber.shifted(len(target) - len(source))),)


def sizes_changed(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """The axes whose size the node changes or may change; None when ranks are unknown."""
    source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
    if source is None or target is None or len(source) != len(target):
        return None
    return tuple(
        axis for axis, (a, b) in enumerate(zip(source, target, strict=True)) if a is None or a != b
    )


@dataclass(frozen=True, slots=True)
class OnOtherAxes:
    """Linear operators along ``axis`` (an attribute) only, alike for all sets: CumSum."""

    axis_input: int | None = None

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        rank = view.rank(node.inputs[0])
        axis = self._axis(view, node)
        if rank is None or axis is None:
            return unknown_shape(node)
        return broken(node, fiber) if axis % rank in fiber.axes else Carried(((0, fiber),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        if index != 0:
            return None
        return tuple((position, fiber) for position in range(len(node.outputs)))

    def _axis(self, view: ModelInfo, node: ir.Node) -> int | None:
        if self.axis_input is None:
            return node.attributes.get_int("axis", 0)
        integers = view.integers(node.inputs[self.axis_input])
        return integers[0] if integers else None


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows picked along ``axis``: P gather(x, i) = gather(P' x, i) when axis is off the fiber.

    With a constant table this is an embedding: each row of the table is centred.
    """

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        moved = self._axes(view, node)
        if moved is None:
            return unknown_shape(node)
        axis, inserted = moved
        # Output axes: [0, axis) from the data, then the indices' axes, then the rest of the data.
        source_of = {out: out for out in range(axis)}
        rank = view.rank(node.outputs[output])
        if rank is None:
            return unknown_shape(node)
        source_of |= {out: out - inserted + 1 for out in range(axis + inserted, rank)}
        if not set(fiber.axes) <= set(source_of):
            return broken(node, fiber)
        return Carried(((0, fiber.moved(source_of)),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        moved = self._axes(view, node)
        if index != 0 or moved is None or moved[0] in fiber.axes:
            return None
        axis, inserted = moved
        target_of = {a: a if a < axis else a + inserted - 1 for a in fiber.axes}
        return ((0, fiber.moved(target_of)),)

    def _axes(self, view: ModelInfo, node: ir.Node) -> tuple[int, int] | None:
        rank, inserted = view.rank(node.inputs[0]), view.rank(node.inputs[1])
        if rank is None or inserted is None:
            return None
        return node.attributes.get_int("axis", 0) % rank, inserted


@dataclass(frozen=True, slots=True)
class GatherND:
    """Slices picked by index tuples: axes of the data behind the indexed ones keep their sets."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        offset = self._offset(view, node)
        rank = view.rank(node.outputs[output])
        if offset is None or rank is None:
            return unknown_shape(node)
        indexed, picked = offset
        if any(axis < picked for axis in fiber.axes):
            return broken(node, fiber)
        return Carried(((0, fiber.shifted(indexed - picked)),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        offset = self._offset(view, node) if index == 0 else None
        if offset is None or any(axis < offset[0] for axis in fiber.axes):
            return None
        return ((0, fiber.shifted(offset[1] - offset[0])),)

    def _offset(self, view: ModelInfo, node: ir.Node) -> tuple[int, int] | None:
        """Return how many axes of the data are indexed (or batch), and of the output picked."""
        shape = view.shape(node.inputs[1])
        if not shape or not isinstance(shape[-1], int):
            return None
        return node.attributes.get_int("batch_dims", 0) + shape[-1], len(shape) - 1


@dataclass(frozen=True, slots=True)
class Concat:
    """P concat(a, b) = concat(P a, P b) off the fiber; along it, sets mix several inputs."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        rank = view.rank(node.outputs[0])
        axis = node.attributes.get_int("axis", 1)
        if rank is None:
            return unknown_shape(node)
        if axis % rank in fiber.axes:
            return refuse(
                RefusalCode.CONCAT_ALONG_FIBER, node, "joins tensors along the normalised elements"
            )
        return Carried(tuple((index, fiber) for index in range(len(node.inputs))))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),)


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile repeats along other axes; along the fiber the sets would grow."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        repeats = view.integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if repeats is None:
            touched = sizes_changed(view, node)
            if touched is None:
                return unknown_shape(node)
        else:
            touched = tuple(axis for axis, count in enumerate(repeats) if count != 1)
        return broken(node, fiber) if set(touched) & set(fiber.axes) else Carried(((0, fiber),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),) if index == 0 else None


@dataclass(frozen=True, slots=True)
class Filled:
    """ConstantOfShape of zeros has mean 0, whatever the shape; it reads sizes, not elements."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if filler(node) == 0.0:
            return ZeroMean()
        return refuse(RefusalCode.DYNAMIC_WEIGHT, node, "fills a tensor with a number other than 0")

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return None


def filler(node: ir.Node) -> float | None:
    """Return the number that ConstantOfShape fills a tensor with; None where it is no number."""
    tensor = node.attributes.get_tensor("value")
    if tensor is not None and tensor.size != 1:
        return None
    return 0.0 if tensor is None else float(tensor.numpy().reshape(()))


@dataclass(frozen=True, slots=True)
class Pad:
    """Padding other axes with zeros (zeros have mean 0), or with what the tensor holds there."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        touched = self._padded(view, node)
        if touched is None:
            return unknown_shape(node)
        if set(touched) & set(fiber.axes):
            return broken(node, fiber)
        if self.is_constant(node) and self.fill(view, node) != 0.0:
            return refuse(
                RefusalCode.VARIES_ALONG_FIBER, node, "pads with a value that is not a constant 0"
            )
        return Carried(((0, fiber),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),) if index == 0 else None

    @staticmethod
    def is_constant(node: ir.Node) -> bool:
        """Whether it pads with one number; else with what the tensor holds."""
        return (node.attributes.get_string("mode", "constant") or "constant") == "constant"

    @staticmethod
    def fill(view: ModelInfo, node: ir.Node) -> float | None:
        """Return the number it pads with, None where that is not known."""
        if view.opset < 11:
            return node.attributes.get_float("value", 0.0)
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        return 0.0 if fill is None else view.scalar(fill)

    def _padded(self, view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
        rank = view.rank(node.inputs[0])
        pads = node.attributes.get_ints("pads", None) if view.opset < 11 else None
        if pads is None:
            pads = view.integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if rank is None or pads is None:
            return None  # equal sizes would not do: padding one end and cropping the other moves
        given = node.inputs[3] if len(node.inputs) > 3 else None
        axes = tuple(range(rank)) if given is None else view.integers(given)
        if axes is None:
            return None
        half = len(axes)
        return tuple(
            axis % rank for i, axis in enumerate(axes) if pads[i] != 0 or pads[half + i] != 0
        )
