"""Layout operators: they move, copy or drop elements; the fiber is followed exactly.

All are linear and treat every element of a set equally, so P commutes with them if each set of the
output's fiber is the image of one set of the input's.
"""

from collections.abc import Callable, Iterable, Mapping
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
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Renames:
    """Keeps all sets within the axes that it passes on, under other names: P f(x) = f(P' x).

    ``sources``: the input axis of each such output axis, None if ranks are unknown.
    """

    sources: Callable[[ModelInfo, ir.Node], Mapping[int, int] | None]

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        source_of = self.sources(view, node)
        if source_of is None:
            return unknown_shape(node)
        inner = _renamed(fiber, source_of)
        return broken(node, fiber) if inner is None else Carried(((0, inner),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        source_of = self.sources(view, node) if index == 0 else None
        if source_of is None:
            return None
        outer = _renamed(fiber, {source: target for target, source in source_of.items()})
        return None if outer is None else ((0, outer),)


def _renamed(fiber: Fiber, axis_of: Mapping[int, int]) -> Fiber | None:
    return fiber.moved(axis_of) if set(fiber.axes) <= axis_of.keys() else None


def transposed(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """Transpose: output axis i is input axis perm[i]."""
    perm = _permutation(view, node)
    return None if perm is None else dict(enumerate(perm))


def _permutation(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    rank = view.rank(node.inputs[0])
    if rank is None:
        return None
    axes = tuple(range(rank))
    perm = node.attributes.get_ints("perm", None)
    if perm is None:
        return axes[::-1]
    # Runtimes do not agree on a permutation that omits axes.
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
    """P expand(x) = expand(P' x), P' over the axes of the fiber that x has itself."""

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
    """Return the axes whose size the node changes or may change; None when ranks are unknown."""
    source, target = view.shape(node.inputs[0]), view.shape(node.outputs[0])
    if source is None or target is None or len(source) != len(target):
        return None
    return tuple(
        axis for axis, (a, b) in enumerate(zip(source, target, strict=True)) if a is None or a != b
    )


@dataclass(frozen=True, slots=True)
class OffAxes:
    """Works only along ``touched`` axes, equally for all sets off them: P f(x) = f(P x).

    ``touched`` explains why an operator is not followed, and is None if axes are unknown.
    """

    touched: Callable[[ModelInfo, ir.Node], Iterable[int] | Refusal | None]

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        touched = self.touched(view, node)
        if touched is None or isinstance(touched, Refusal):
            return touched or unknown_shape(node)
        off = set(touched).isdisjoint(fiber.axes)
        return Carried(((0, fiber),)) if off else broken(node, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),) if index == 0 else None


def accumulated(view: ModelInfo, node: ir.Node) -> tuple[int, ...] | None:
    """CumSum adds up along one axis."""
    rank, axis = view.rank(node.inputs[0]), view.integers(node.inputs[1])
    return None if rank is None or not axis else (axis[0] % rank,)


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
    if rank is None or inserted is None or view.rank(node.outputs[0]) is None:
        return None
    axis = node.attributes.get_int("axis", 0) % rank
    # Output axes: [0, axis) from the data, then the indices' axes, then the rest of the data.
    behind = {source + inserted - 1: source for source in range(axis + 1, rank)}
    return {out: out for out in range(axis)} | behind


def gathered_by_tuples(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """Map the axes of GatherND, which picks slices by index tuples: later axes of the data stay."""
    shape, rank = view.shape(node.inputs[1]), view.rank(node.outputs[0])
    if not shape or not isinstance(shape[-1], int) or rank is None:
        return None
    indexed, picked = node.attributes.get_int("batch_dims", 0) + shape[-1], len(shape) - 1
    return {out: out + indexed - picked for out in range(picked, rank)}


@dataclass(frozen=True, slots=True)
class Scatter:
    """P scatter(x, i, u) = scatter(P x, i, P u) if whole sets are replaced, or added to others.

    Message passing adds up the edges of a node this way: index_add, scatter_add of expanded
    indices.
    """

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if not self.is_linear(node):
            return refuse(RefusalCode.ACTIVATION, node, "is not linear")
        source_of = _written(view, node, fiber)
        if source_of is None:
            return unknown_shape(node)
        updates = _renamed(fiber, source_of)
        return broken(node, fiber) if updates is None else Carried(((0, fiber), (2, updates)))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        if index != 2:
            return ((0, fiber),) if index == 0 else None
        behind = _written(view, node, None)
        outer = None
        if behind is not None:
            outer = _renamed(fiber, {inner: outer for outer, inner in behind.items()})
        return None if outer is None else ((0, outer),)

    @staticmethod
    def is_linear(node: ir.Node) -> bool:
        """Whether numbers are replaced or added, and not multiplied or compared."""
        return node.attributes.get_string("reduction", "none") in ("none", "add")


def _written(view: ModelInfo, node: ir.Node, fiber: Fiber | None) -> Mapping[int, int] | None:
    """Map axes of the data to axes of the updates, if whole sets of a fiber are written.

    Only axes of a fiber are mapped if every element has an index; all axes otherwise.
    """
    rank, shape = view.rank(node.inputs[0]), view.shape(node.inputs[1])
    if rank is None or not shape:
        return None
    if node.op_type == "ScatterND":
        depth, picked = shape[-1], len(shape) - 1
        if not isinstance(depth, int):
            return None
        return {axis: axis - depth + picked for axis in range(depth, rank)}
    axis = node.attributes.get_int("axis", 0) % rank
    others = [other for other in range(rank) if other != axis]
    return {
        other: other
        for other in others
        if fiber is None or (other in fiber.axes and _alike_along(view, node, other))
    }


def _alike_along(view: ModelInfo, node: ir.Node, axis: int) -> bool:
    """Whether ScatterElements writes all of an axis, with equal indices along it."""
    data, indices = node.inputs[0], node.inputs[1]
    size, given = view.dim(data, axis), view.dim(indices, axis)
    if indices is None or not isinstance(size, int) or size != given:
        return False
    array = view.array(indices)
    if array is not None:
        return size > 0 and bool((array == array.take([0], axis)).all())
    expand = indices.producer()
    if expand is None or (expand.domain, expand.op_type) != ("", "Expand"):
        return False
    rank, source = view.rank(indices), view.shape(expand.inputs[0])
    if rank is None or source is None:
        return False
    place = axis - rank + len(source)
    return place < 0 or source[place] == 1


@dataclass(frozen=True, slots=True)
class Concat:
    """P concat(a, b) = concat(P a, P b) off the fiber; along it, sets mix several inputs."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        rank = view.rank(node.outputs[0])
        axis = node.attributes.get_int("axis", 1)
        if rank is None:
            return unknown_shape(node)
        if axis % rank in fiber.axes:
            sentence = "concatenates tensors along the normalized elements"
            return refuse(RefusalCode.CONCAT_ALONG_FIBER, node, sentence)
        return Carried(tuple((index, fiber) for index in range(len(node.inputs))))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ((0, fiber),)


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
    """Return the number with which ConstantOfShape fills a tensor; None for other types."""
    tensor = node.attributes.get_tensor("value")
    if tensor is not None and tensor.size != 1:
        return None
    return 0.0 if tensor is None else float(tensor.numpy().reshape(()))


@dataclass(frozen=True, slots=True)
class Pad:
    """Padding of other axes with zeros (zeros have mean 0), or with numbers of the tensor there."""

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
        """Whether it pads with one number, and not with numbers of the tensor."""
        return (node.attributes.get_string("mode", "constant") or "constant") == "constant"

    @staticmethod
    def fill(view: ModelInfo, node: ir.Node) -> float | None:
        """Return the padding number, or None if unknown."""
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
            return None  # padding one end and cropping the other keeps sizes
        given = node.inputs[3] if len(node.inputs) > 3 else None
        axes = tuple(range(rank)) if given is None else view.integers(given)
        if axes is None:
            return None
        half = len(axes)
        return tuple(
            axis % rank for i, axis in enumerate(axes) if pads[i] != 0 or pads[half + i] != 0
        )
