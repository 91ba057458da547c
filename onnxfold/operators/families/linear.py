"""Linear operators: sums, layouts, averages and products. Centering a weight centers its product.

What is linear in several operands together carries P into all of them, each along the indices of
the fiber that it has: P(a + b) = P a + P' b. A product is linear in each factor alone. If one
factor has all indices of a fiber of the output and no other varies along them,

    P (A B + c) = A (P B) + P' c

and P applies to that factor, a weight (a writer) or an activation (attention times values, token
mixing); the other factors are read exactly. Their indexing maps (maps.py) determine this factor,
and the indices along which an operator works, so that it mixes or splits the sets.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, whole_axes
from onnxfold.operators import facets
from onnxfold.operators.families.maps import (
    Axes,
    IndexMap,
    map_of,
    may_broadcast,
    varies,
)
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    ZeroMean,
    broken,
    refuse,
    unknown_shape,
)
from onnxfold.operators.row import Family, Operator
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_FIXED = "has a quantized weight, which cannot be centered; fold before quantizing"


def _nothing(view: ModelInfo, node: ir.Node, output: int) -> None:
    del view, node, output


def _broken(view: ModelInfo, node: ir.Node, fiber: Fiber) -> Refusal:
    del view
    return broken(node, fiber)


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear in some operands together, or in each alone, whose indices its map names.

    ``unless`` lists exceptions for a node; ``why`` a fiber is not carried into its operands.
    """

    unless: Callable[[ModelInfo, ir.Node, int], ZeroMean | Refusal | None] = _nothing
    why: Callable[[ModelInfo, ir.Node, Fiber], Refusal] = _broken

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        known = map_of(view, node)
        if known is None or isinstance(known, Refusal):
            return known or without_map(node)
        labels = known.labels(fiber.blocks, known.output)
        if labels is None or any(label.endswith("!") for label in labels):
            return self.why(view, node, fiber)
        other, row = self.unless(view, node, output), row_of(node)
        if other is not None:
            return other
        for chosen in _choices(row, known):
            rest = (axes for i, axes in enumerate(known.factors) if i not in chosen)
            if any(varies(axes, labels) for axes in rest):
                continue
            carried = (*chosen, row.bias) if known.bias is not None and row.bias else chosen
            if any(may_broadcast(known.operand(index), labels) for index in carried):
                return unknown_shape(node)
            inner = {
                index: known.image(
                    fiber,
                    known.output,
                    known.operand(index),
                    partly=index == row.bias or not row.alone,
                )
                for index in carried
            }
            whole = tuple((index, own) for index, own in inner.items() if own is not None)
            if len(whole) == len(carried):
                return Carried(whole)
        return self.why(view, node, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        known, row = map_of(view, node), row_of(node)
        if facets.reads_type_alone(row, index) or isinstance(self.unless(view, node, 0), ZeroMean):
            return ()
        if isinstance(known, Refusal):
            return ((0, fiber),)  # what is refused says why
        if known is None or view.rank(node.inputs[index]) is None:
            return None
        if index not in (*facets.data_inputs(row, len(known.factors)), row.bias):
            return None
        axes = _certain(known.operand(index))
        if not fiber.blocks and facets.positionwise(row):
            return _everywhere(view, node, known, axes)
        outer = known.image(fiber, axes, known.output)
        return None if outer is None else ((0, outer),)


def _choices(row: Operator, known: IndexMap) -> tuple[tuple[int, ...], ...]:
    """Return the operands into which P may be carried: each alone, or all that hold numbers."""
    data = facets.data_inputs(row, len(known.factors))
    return tuple((index,) for index in data) if row.alone else (data,)


def _everywhere(view: ModelInfo, node: ir.Node, known: IndexMap, axes: Axes) -> Forward:
    """Return where a change of single elements is constant: on all axes that broadcasting adds."""
    shape = view.shape(node.outputs[0]) or ()
    added = [
        axis
        for axis, label in enumerate(known.output)
        if label not in axes and isinstance(shape[axis], int)
    ]
    outer = whole_axes(shape, added)
    return None if outer is None else ((0, outer),)


def refuse_groups(view: ModelInfo, node: ir.Node, fiber: Fiber) -> Refusal:
    """Say why a linear layer does not carry a fiber."""
    known = map_of(view, node)
    if isinstance(known, IndexMap) and known.sizes:
        labels = known.labels(fiber.blocks, known.output)
        if labels and "g" in labels:
            sentence = "is a grouped convolution: channels differ"
            return refuse(RefusalCode.GROUPED_CONVOLUTION, node, sentence)
    return broken(node, fiber)


def refuse_codes(view: ModelInfo, node: ir.Node, fiber: Fiber) -> Refusal:
    """Say why a fiber is not carried into a weight that is stored as codes."""
    del view, fiber
    return refuse(RefusalCode.QUANTISED, node, _FIXED)


def without_map(node: ir.Node) -> Refusal:
    """Return why a linear operator lacks a map."""
    if row_of(node).family is Family.EINSUM:
        return refuse(RefusalCode.UNKNOWN_OP, node, "has an equation that is not followed")
    if any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        return refuse(RefusalCode.UNKNOWN_OP, node, "transposes batches, which is not followed")
    return unknown_shape(node)


def _certain(axes: Axes) -> Axes:
    """Return the axes of an operand with what may broadcast taken for what does not."""
    return tuple(tuple(label.removesuffix("?") for label in axis) for axis in axes)
