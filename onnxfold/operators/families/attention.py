"""Attention operators: linear in the values, head by head; queries and keys are read exactly.

Y = A V per head, with weights A that depend on queries and keys alone.  An element of a head of V
meets only the same element of the same head of Y, so P along elements of one head is carried into
V, whatever A is: masks, caps and sinks of the scores change A, not the law.

A shift c of all keys is ignored: q (k + c)' = q k' + q c' adds the same number to all scores of a
query, and Softmax over the keys does not see it.  A cap of the scores does, and so does a sink.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, whole_axes
from onnxfold.graph.operands import operand
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    broken,
    refuse,
    unknown_shape,
)
from onnxfold.refusal import RefusalCode

_KEY, _VALUE, _PRESENT_VALUE = 1, 2, 2  # two inputs, an output


@dataclass(frozen=True, slots=True)
class Attention:
    """Y = A V per head: P along elements of one head applies to V, in the same head.

    ``sinks``: scores may meet others than those of keys, or keys be turned.
    """

    heads: str  # the attribute with the number of heads of Y
    value_heads: str  # and of V
    caches: tuple[int, int]  # inputs with the past keys and values, [batch, heads, .., size]
    inputs: int  # number of known inputs; later ones quantize or share a cache
    biases: tuple[int, ...] = ()  # inputs that are added to V
    sinks: bool = False

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if output != 0:
            return refuse(RefusalCode.UNKNOWN_OP, node, "has no law for a further output")
        if not self._plain(node):
            return refuse(
                RefusalCode.EXACT_READER, node, "packs its values, caches them or adds a bias"
            )
        y, v = view.rank(node.outputs[0]), view.rank(node.inputs[_VALUE])
        size = self._value_size(view, node)
        if y is None or v is None or size is None:
            return unknown_shape(node)
        inner = _within_heads(fiber, y - 1, v - 1, size, self._copies(node, v, self.value_heads))
        return broken(node, fiber) if inner is None else Carried(((_VALUE, inner),))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        if index == _KEY and self._ignores(view, node, fiber):
            return ()
        if index != _VALUE or not self._plain(node):
            return None
        y, v = view.rank(node.outputs[0]), view.rank(node.inputs[_VALUE])
        size = self._value_size(view, node)
        if y is None or v is None or size is None:
            return None
        outer = _within_heads(fiber, v - 1, y - 1, size, self._copies(node, y, self.heads))
        return None if outer is None else ((0, outer),)

    def _ignores(self, view: ModelInfo, node: ir.Node, fiber: Fiber) -> bool:
        """Whether a shift of K that is constant along a fiber moves all keys alike."""
        shape, others = view.shape(node.inputs[_KEY]), node.outputs[1:]
        given = [index for index, value in enumerate(node.inputs) if value is not None]
        if shape is None or len(shape) not in (3, 4) or max(given) >= self.inputs or self.sinks:
            return False
        if any(value.uses() or value.is_graph_output() for value in others):
            return False  # the cache keeps the keys, or somebody reads the scores
        if self.caches[0] in given or node.attributes.get_float("softcap"):
            return False
        keys = whole_axes(shape, (len(shape) - 2,))
        return keys is not None and fiber.covers(keys)

    def _plain(self, node: ir.Node) -> bool:
        """Whether V is one input, to which nothing is joined and which no cache keeps."""
        given = {index for index, value in enumerate(node.inputs) if value is not None}
        kept = node.outputs[_PRESENT_VALUE] if len(node.outputs) > _PRESENT_VALUE else None
        if kept is not None and (kept.uses() or kept.is_graph_output()):
            return False
        if _VALUE not in given or max(given) >= self.inputs:
            return False
        return given.isdisjoint((self.caches[1], *self.biases))

    def _value_size(self, view: ModelInfo, node: ir.Node) -> int | None:
        return _head_size(view, node.inputs[_VALUE], node.attributes.get_int(self.value_heads, 0))

    def cached_size(self, view: ModelInfo, node: ir.Node) -> int | None:
        """Return the elements of a head in the caches; None if the queries do not determine it.

        Queries [batch, tokens, heads * size] include keys and values if no keys are given.
        """
        heads = node.attributes.get_int(self.heads, 0)
        if operand(node, 1) is None:
            heads += 2 * node.attributes.get_int(self.value_heads, 0)
        return _head_size(view, node.inputs[0], heads)

    def _copies(self, node: ir.Node, rank: int, heads: str) -> int:
        return 1 if rank == 4 else node.attributes.get_int(heads, 1)


def _head_size(view: ModelInfo, value: ir.Value | None, heads: int) -> int | None:
    """Return the last size of a value, divided by its heads if they share that axis."""
    shape = view.shape(value)
    last = shape[-1] if shape else None
    if shape is None or not isinstance(last, int) or len(shape) < 3:
        return None
    if len(shape) > 3:
        return last
    return last // heads if heads > 0 and last % heads == 0 else None


def _within_heads(fiber: Fiber, axis: int, target: int, size: int, heads: int) -> Fiber | None:
    """Rename ``axis`` to ``target``, whose heads have ``size`` elements; None across heads."""
    blocks: list[AxisBlock] = []
    for block in fiber.blocks:
        length = block.inner * block.size
        if block.axis != axis or size % length:
            return None
        blocks.append(AxisBlock(target, block.inner, block.size, heads * (size // length)))
    return Fiber.of(blocks)
