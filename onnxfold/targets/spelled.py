"""The axes of norms as operators have them, and RMSNorms in several operators otherwise."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.operands import known_producer, producer_of
from onnxfold.norms.site import NormForm, NormSite
from onnxfold.operators.new_nodes import NewNodes

_FUSED = frozenset({"Pow", "ReduceMean", "Add", "Sqrt", "Div"})
_ALSO_FUSED = frozenset({"Sub", "Mul", "Cast"})
_NEGATIVE_AXES_SINCE = 11


def is_fused_spelling(site: NormSite) -> bool:
    """Whether ONNX Runtime makes one operator of the operators of a norm.

    It recognizes x / sqrt(..), or x * (1 / sqrt(..)), of Pow(x, 2), followed by gamma or ones, and
    in a LayerNorm by beta; dynamo and deferral write x * Reciprocal(sqrt(..)), jax2onnx x * x, and
    Keras Min(., inf) and Max(., 0) in the root.
    """
    whole = not site.subtracts_mean or (site.gamma is not None and site.beta is not None)
    return whole and {node.op_type for node in site.nodes} - _ALSO_FUSED == _FUSED


def trailing_axes(view: ModelInfo, site: NormSite) -> int | None:
    """Return k if the fiber is the last k whole axes, otherwise None."""
    rank = view.rank(site.input)
    axes = site.fiber.axes
    if rank is None or not site.fiber.whole or not axes:
        return None
    shape = view.shape(site.input) or ()
    # Axes of size 1 are not in a fiber but may be between its axes.
    between = [axis for axis in range(axes[0], rank) if axis not in axes]
    return rank - axes[0] if all(shape[axis] == 1 for axis in between) else None


def adjacent_blocks(view: ModelInfo, site: NormSite) -> tuple[int, int] | None:
    """Return (blocks, size) if the fiber is blocks of adjacent elements on the last axis."""
    rank = view.rank(site.input)
    if rank is None or len(site.fiber.blocks) != 1:
        return None
    (block,) = site.fiber.blocks
    if block.axis != rank - 1 or block.inner != 1 or block.whole or block.outer is None:
        return None
    return block.outer, block.size


def wide_epsilon(site: NormSite) -> bool:
    """Whether epsilon, which may be a sum of two, is not representable as a float32 attribute."""
    rounded = float(np.float32(site.epsilon))
    return site.form is NormForm.DECOMPOSED and rounded != site.epsilon


def spells_axes(site: NormSite) -> bool:
    """Whether a norm in operators may lose its mean, along any whole axes.

    In float16 the squares would overflow.
    """
    spelled = site.form is NormForm.DECOMPOSED and site.affine_axis is None
    return (
        spelled and site.fiber.whole and site.input.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    )


def spelled_rms(new: NewNodes, site: NormSite, x: ir.Value) -> ir.Value:
    """Return x / sqrt(mean(x * x) + epsilon) along the norm's axes, in the type of x.

    The reciprocal comes first; otherwise ONNX Runtime's transformers optimizer raises TypeError.
    """
    dtype = np.float64 if x.dtype is ir.DataType.DOUBLE else np.float32
    epsilon = new.weight(f"{x.name}.epsilon", np.array(site.epsilon, dtype))
    first = len(new.nodes)
    square = new.op("Mul", x, x)
    axes = from_the_end(new, site.fiber.axes, len(site.input.shape or ()))
    mean = new.along("ReduceMean", square, axes, f"{x.name}.axes", keepdims=1)
    root = new.op("Sqrt", new.op("Add", mean, epsilon))
    inverse = new.op("Reciprocal", root)
    y = new.op("Mul", inverse, x)
    dims = enumerate(tuple(site.input.shape or ()))
    rows = [1 if axis in site.fiber.axes else dim for axis, dim in dims]
    for node in new.nodes[first:]:
        node.outputs[0].type = x.type
    for node in new.nodes[first + 1 : -1]:
        node.outputs[0].shape = ir.Shape(rows)
    return y


def from_the_end(new: NewNodes, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes that stay valid if others precede them, as far as operators support it."""
    return [axis - rank if new.opset >= _NEGATIVE_AXES_SINCE else axis for axis in axes]


def reads_only_centred(site: NormSite) -> bool:
    """Whether the norm reads x only through x - mean(x), so that without it no mean is left.

    A variance E[x^2] - E[x]^2 would stay as it is.
    """
    own = set(site.nodes)
    before = {known_producer(value) for value in site.centred}
    waiting = [operand for node in before for operand in node.inputs]
    values = {site.input}
    while waiting:
        value = waiting.pop()
        node = producer_of(value)
        if value is not None and node in own and node not in before:
            before.add(node)
            values.add(value)
            waiting += node.inputs
    return all(use.node in before for value in values for use in value.uses() if use.node in own)
