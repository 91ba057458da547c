"""What a proof compares: attributes, operands, and the extents of norms in two models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, follow_reshape, whole_axes
from onnxfold.graph.compare import same_numbers
from onnxfold.norms import NormSite

__all__ = [
    "AffinePart",
    "repeated_axes",
    "same_epsilon",
    "same_operand",
    "with_next_affine",
    "without_reshapes",
]

Array = npt.NDArray[np.generic]
AffinePart = ir.Value | Array | None


def without_reshapes(view: ModelInfo, site: NormSite) -> NormSite:
    """Return Reshape, norm, Reshape back as the norm of what the first Reshape reads."""
    before = site.input.producer()
    uses = list(site.output.uses())
    if before is None or before.op_type != "Reshape" or len(uses) != 1:
        return site
    source, after = before.inputs[0], uses[0].node
    if source is None or after.op_type != "Reshape" or after.domain or site.gamma is not None:
        return site
    inner, outer = view.shape(source), view.shape(site.input)
    if inner is None or outer is None or view.shape(after.outputs[0]) != inner:
        return site
    fiber = follow_reshape(site.fiber, outer, inner)
    if fiber is None or site.beta is not None:
        return site
    return replace(site, input=source, output=after.outputs[0], fiber=fiber)


def with_next_affine(site: NormSite) -> NormSite | None:
    """Return the norm with the Mul or Add that alone reads its result as gamma or beta."""
    uses = list(site.output.uses())
    if len(uses) != 1 or site.output.is_graph_output():
        return None
    node, index = uses[0].node, uses[0].idx
    if node.op_type not in ("Mul", "Add") or node.domain or len(node.inputs) != 2:
        return None
    operand = node.inputs[1 - index]
    if node.op_type == "Mul" and site.gamma is None and site.beta is None:
        return replace(site, output=node.outputs[0], gamma=operand)
    if node.op_type == "Add" and site.beta is None:
        return replace(site, output=node.outputs[0], beta=operand)
    return None


def same_operand(a: Array, b: Array) -> bool:
    """Whether two affine operands of a norm have equal elements, or are one number throughout."""
    if same_numbers(a.reshape(-1), b.reshape(-1)):
        return True
    return min(a.size, b.size) == 1 and same_numbers(*np.broadcast_arrays(a, b))


def repeated_axes(view: ModelInfo, result: ir.Value, operand: ir.Value) -> tuple[Fiber, ...]:
    """Return each axis of a result along which broadcasting repeats an operand, as a fiber."""
    shape, source = view.shape(result), view.shape(operand)
    offset = len(shape or ()) - len(source or ())
    if shape is None or source is None or offset < 0:
        return ()
    found = (
        whole_axes(shape, [axis])
        for axis, dim in enumerate(shape)
        if dim != 1 and (axis < offset or source[axis - offset] == 1)
    )
    return tuple(fiber for fiber in found if fiber is not None)


def same_epsilon(old: float, new: float) -> bool:
    """Whether both are the same number in float32, in which operators hold it."""
    return same_numbers(np.float32(old), np.float32(new))
