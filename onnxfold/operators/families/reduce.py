"""Averages over other axes, and readers that ignore a shift."""

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, keeps_dims, whole_axes
from onnxfold.operators.families.layout import sizes_changed
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


def unreduced(view: ModelInfo, node: ir.Node) -> Mapping[int, int] | None:
    """Sums and means over other axes: P mean_j(x) = mean_j(P x).

    Returns the input axis of each output axis that is not reduced.
    """
    rank, written = view.rank(node.inputs[0]), view.axes(node)
    if not rank or written is None:
        return None  # of a scalar nothing is reduced
    everything = not written and node.attributes.get_int("noop_with_empty_axes", 0) == 0
    reduced = set(range(rank)) if everything else {axis % rank for axis in written}
    kept = [axis for axis in range(rank) if axis not in reduced]
    if keeps_dims(node):
        return {axis: axis for axis in kept}
    return dict(enumerate(kept))


def averaged(view: ModelInfo, node: ir.Node) -> Iterable[int] | None:
    """Return the axes of pooling, which averages axes 2 and up equally in every channel."""
    rank = view.rank(node.outputs[0])
    return None if rank is None else range(2, rank)


# These crop, fill in extrapolated values, or move elements of an axis whose scale is 1.
_MOVING_TRANSFORMS = frozenset({"tf_crop_and_resize", "tf_half_pixel_for_nn"})


def resampled(view: ModelInfo, node: ir.Node) -> Iterable[int] | Refusal | None:
    """Return the axes of a Resize, which interpolates with equal weights in every set.

    These are the axes whose scale may differ from 1, even if their size does not change;
    extrapolated values are refused.
    """
    transform = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if transform in _MOVING_TRANSFORMS:
        return refuse(RefusalCode.UNKNOWN_OP, node, f"is not followed with {transform}")
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return refuse(RefusalCode.UNKNOWN_OP, node, f"is not followed with policy {policy}")
    position = 1 if view.opset < 11 else 2
    scales = node.inputs[position] if len(node.inputs) > position else None
    if scales is None or view.dim(scales, 0) == 0:
        return sizes_changed(view, node)
    factors, rank = view.array(scales), view.rank(node.inputs[0])
    if factors is None or rank is None:
        return None
    axes = node.attributes.get_ints("axes", tuple(range(rank)))
    pairs = zip(axes, factors.tolist(), strict=True)
    return {axis % rank for axis, factor in pairs if factor != 1.0}


class ReadsNoElements:
    """Shape and Size read no elements, so a change of values does not reach them."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return refuse(RefusalCode.ACTIVATION, node, "is not linear")

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return ()


class ShiftInvariant:
    """Softmax and LogSoftmax: f(x + s) = f(x) for s constant along the axis."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return refuse(RefusalCode.ACTIVATION, node, "is not linear")

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        seen = self.invariant_fiber(view, node)
        return () if seen is not None and fiber.covers(seen) else None

    def invariant_fiber(self, view: ModelInfo, node: ir.Node) -> Fiber | None:
        """Return the fiber along which the operator ignores a shift."""
        shape = view.shape(node.inputs[0])
        if shape is None:
            return None
        # Before opset 13 all axes from `axis` (default 1) on were normalized together.
        coarse = view.opset < 13
        axis = node.attributes.get_int("axis", 1 if coarse else -1) % len(shape)
        return whole_axes(shape, range(axis, len(shape)) if coarse else (axis,))


class Centring:
    """onnxfold.Center: x - mean(x) has mean 0 and ignores a shift; P along fewer axes commutes."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        centred = self.fiber(view, node)
        if centred is None:
            return unknown_shape(node)
        if fiber.covers(centred):
            return ZeroMean()
        # P Q = Q P = Q for the projector Q along sets within the sets of P.
        return Carried(((0, fiber),)) if centred.covers(fiber) else broken(node, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        centred = self.fiber(view, node)
        if centred is None or fiber.covers(centred):
            return None if centred is None else ()
        return ((0, fiber),) if centred.covers(fiber) else None

    def fiber(self, view: ModelInfo, node: ir.Node) -> Fiber | None:
        """Return the elements whose mean the node subtracts."""
        shape = view.shape(node.inputs[0])
        axes = range(node.attributes.get_int("axis", -1), 0)
        return None if shape is None else whole_axes(shape, axes)
