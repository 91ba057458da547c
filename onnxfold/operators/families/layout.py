"""Layout operators: they move, copy or drop elements; the fiber is followed exactly.

All of them are linear and act alike on every element of a set, so P commutes with them as long as
each set of the output's fiber is the image of one set of the input's. For most of them maps.py has
the axes that input and output share, and the axes along which the operator works.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, follow_reshape
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    ZeroMean,
    broken,
    refuse,
    unknown_shape,
)
from onnxfold.refusal import Refusal, RefusalCode


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


class Filled:
    """ConstantOfShape of zeros has mean 0, whatever the shape; it reads sizes, not elements."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if filler(node) == 0.0:
            return ZeroMean()
        return refuse(RefusalCode.DYNAMIC_WEIGHT, node, "fills a tensor with a number other than 0")

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return None


def filler(node: ir.Node) -> float | None:
    """Return the number with which ConstantOfShape fills a tensor; None for other types."""
    tensor = node.attributes.get_tensor("value")
    if tensor is not None and tensor.size != 1:
        return None
    return 0.0 if tensor is None else float(tensor.numpy().reshape(()))


def transposed(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """Return of each axis of a Transpose the input's: output axis i is input axis perm[i]."""
    rank = view.rank(node.inputs[0])
    if rank is None:
        return None
    axes = tuple(range(rank))
    perm = node.attributes.get_ints("perm", None) or axes[::-1]
    # Runtimes do not agree on one that leaves axes out.
    return dict(enumerate(perm)) if tuple(sorted(perm)) == axes else None


def sizes_changed(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """The axes whose size the node changes or may change; None when ranks are unknown."""
    source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
    if source is None or target is None or len(source) != len(target):
        return None
    return tuple(
        axis for axis, (a, b) in enumerate(zip(source, target, strict=True)) if a is None or a != b
    )


def accumulated(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """CumSum adds up along one axis."""
    return view.integers(node.inputs[1]) or None


def joined(view: ModelInfo, node: ir.Node) -> tuple[int, ...]:
    """Concat joins tensors along one axis."""
    del view
    return (node.attributes.get_int("axis", 1),)


def parted(view: ModelInfo, node: ir.Node) -> tuple[int, ...]:
    """Split parts a tensor along one axis."""
    del view
    return (node.attributes.get_int("axis", 0),)


def repeated(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """Tile repeats along some axes; along the fiber the sets would grow."""
    repeats = view.integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if repeats is None:
        return sizes_changed(view, node)
    return tuple(axis for axis, count in enumerate(repeats) if count != 1)


def gathered(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """Gather picks rows along ``axis``: P gather(x, i) = gather(P' x, i) off the fiber.

    With a constant table this is an embedding: each row of the table is centered.
    """
    rank, inserted = view.rank(node.inputs[0]), view.rank(node.inputs[1])
    if rank is None or inserted is None:
        return None
    axis = node.attributes.get_int("axis", 0) % rank
    # Output axes: [0, axis) from the data, then the indices' axes, then the rest of the data.
    behind = {source + inserted - 1: source for source in range(axis + 1, rank)}
    return {out: out for out in range(axis)} | behind


def gathered_by_tuples(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """GatherND picks slices by index tuples: axes of the data after the indexed ones stay."""
    shape, rank = view.shape(node.inputs[1]), view.rank(node.outputs[0])
    if not shape or not isinstance(shape[-1], int) or rank is None:
        return None
    indexed, picked = node.attributes.get_int("batch_dims", 0) + shape[-1], len(shape) - 1
    return {out: out + indexed - picked for out in range(picked, rank)}


def written(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """Return the updates' axes of a Scatter by the data axes that it does not write along."""
    rank, shape = view.rank(node.inputs[0]), view.shape(node.inputs[1])
    if rank is None or not shape:
        return None
    if node.op_type == "ScatterND":
        depth, picked = shape[-1], len(shape) - 1
        if not isinstance(depth, int):
            return None
        return {axis: axis - depth + picked for axis in range(depth, rank)}
    axis = node.attributes.get_int("axis", 0) % rank
    return {other: other for other in range(rank) if other != axis}


def writes_whole(view: ModelInfo, node: ir.Node, axis: int) -> bool:
    """Whether ScatterElements writes all of an axis, everywhere to the same place of the other.

    Message passing adds up the edges of a node so: index_add, scatter_add of expanded indices.
    """
    data, indices = node.inputs[0], node.inputs[1]
    size, given = view.dim(data, axis), view.dim(indices, axis)
    if indices is None or not isinstance(size, int) or size != given:
        return False
    array = view.array(indices)
    if array is not None:
        return not np.diff(array, axis=axis).any()
    expand = indices.producer()
    if expand is None or (expand.domain, expand.op_type) != ("", "Expand"):
        return False
    rank, source = view.rank(indices), view.shape(expand.inputs[0])
    if rank is None or source is None:
        return False
    place = axis - rank + len(source)
    return place < 0 or source[place] == 1


def scatters_linearly(node: ir.Node) -> bool:
    """Whether numbers are replaced or added up, and not multiplied or compared."""
    return node.attributes.get_string("reduction", "none") in ("none", "add")


def pads_constant(node: ir.Node) -> bool:
    """Whether it pads with one number; otherwise with numbers of the tensor."""
    return (node.attributes.get_string("mode", "constant") or "constant") == "constant"


def pad_value(view: ModelInfo, node: ir.Node) -> float | None:
    """Return the padding number, or None if unknown."""
    if view.opset < 11:
        return node.attributes.get_float("value", 0.0)
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    return 0.0 if fill is None else view.scalar(fill)


def refuse_padding(view: ModelInfo, node: ir.Node, output: int) -> Refusal | None:
    """Say why a Pad is not followed: zeros have mean 0, and so has what the tensor holds there."""
    del output
    if not pads_constant(node) or pad_value(view, node) == 0.0:
        return None
    sentence = "pads with a value that is not a constant 0"
    return refuse(RefusalCode.VARIES_ALONG_FIBER, node, sentence)


def pads_of(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """Return how much a Pad adds before and after each axis; None if unknown."""
    pads = node.attributes.get_ints("pads", None) if view.opset < 11 else None
    if pads is not None:
        return tuple(pads)
    return view.integers(node.inputs[1]) if len(node.inputs) > 1 else None


def padded(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """Pad adds to some axes; equal sizes would not do: padding one end may crop the other."""
    rank, pads = view.rank(node.inputs[0]), pads_of(view, node)
    if rank is None or pads is None:
        return None
    given = node.inputs[3] if len(node.inputs) > 3 else None
    axes = tuple(range(rank)) if given is None else view.integers(given)
    if axes is None:
        return None
    half = len(axes)
    return tuple(axis % rank for i, axis in enumerate(axes) if pads[i] != 0 or pads[half + i] != 0)


def refuse_joining(view: ModelInfo, node: ir.Node, fiber: Fiber) -> Refusal:
    """Say why a Concat along a fiber is not followed."""
    del view, fiber
    sentence = "concatenates tensors along the normalized elements"
    return refuse(RefusalCode.CONCAT_ALONG_FIBER, node, sentence)
