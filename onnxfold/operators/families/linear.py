"""Linear layers: products with a weight.  Centring the weight centres the output, for free.

MatMul, Gemm, Conv, ConvTranspose and Einsum are linear in each factor alone.  Where one factor
holds all indices of a fiber of the output and no other factor varies along them,

    P (A B + c) = A (P B) + P' c

and P is carried into that factor, be it a weight (a writer) or an activation (attention times
values, token mixing); the other factors are read exactly.  Their indexing maps (maps.py) tell which
it is.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.operators.families.maps import IndexMap, map_of, may_broadcast, varies
from onnxfold.operators.families.transfer import (
    Backward,
    Carried,
    Forward,
    broken,
    refuse,
    unknown_shape,
)
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_FIXED = "has a quantised weight, which cannot be centred; fold before quantising"


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A sum of products of factors, plus a bias, whose indices its map names."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        known = map_of(view, node)
        if known is None:
            return without_map(node)
        labels = known.labels(fiber.blocks, known.output)
        if labels is None:
            return broken(node, fiber)
        for index, factor in enumerate(known.factors):
            others = known.factors[:index] + known.factors[index + 1 :]
            if any(varies(axes, labels) for axes in others):
                continue
            if any(may_broadcast(axes, labels) for axes in (factor, known.bias or ())):
                return unknown_shape(node)
            inner = known.image(fiber.blocks, known.output, factor)
            if inner is not None and index and row_of(node).family is Family.MATMUL_BLOCKS:
                return refuse(RefusalCode.QUANTISED, node, _FIXED)
            if inner is not None:
                return Carried(((index, Fiber.of(inner)), *_into_bias(known, fiber)))
        if "g" in labels and known.sizes:
            sentence = "is a grouped convolution: channels differ"
            return refuse(RefusalCode.GROUPED_CONVOLUTION, node, sentence)
        return broken(node, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        known = map_of(view, node)
        if known is None:
            return None
        outer = known.image(fiber.blocks, known.operand(index), known.output)
        return None if outer is None else ((0, Fiber.of(outer)),)


def _into_bias(known: IndexMap, fiber: Fiber) -> tuple[tuple[int, Fiber], ...]:
    """Return the fiber of a bias: of the indices that it has."""
    if known.bias is None:
        return ()
    images = (known.image((block,), known.output, known.bias) for block in fiber.blocks)
    inner = Fiber.of(block for image in images for block in image or ())
    return ((known.bias_input, inner),)


def without_map(node: ir.Node) -> Refusal:
    """Return why a linear layer has no map."""
    if row_of(node).family is Family.EINSUM:
        return refuse(RefusalCode.UNKNOWN_OP, node, "has an equation that is not followed")
    if any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        return refuse(RefusalCode.UNKNOWN_OP, node, "transposes batches, which is not followed")
    return unknown_shape(node)
