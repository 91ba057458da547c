"""The transfer functions of every family, and what a node's row says of it."""

from collections.abc import Mapping

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.operators.families import layout, reduce
from onnxfold.operators.families.attention import Attention
from onnxfold.operators.families.conditions import CONDITIONS
from onnxfold.operators.families.elementwise import Additive, Cast, Dropout, Masked, Scaled
from onnxfold.operators.families.linear import WeightedSum
from onnxfold.operators.families.parts import Slice, Split, may_reverse
from onnxfold.operators.families.transfer import Transfer, refuse
from onnxfold.operators.row import Elements, Family
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal

TRANSFERS: Mapping[Family, Transfer] = {
    Family.ADDITIVE: Additive(),
    Family.ATTENTION: Attention("q_num_heads", "kv_num_heads", (4, 5), inputs=7),
    Family.CAST: Cast(),
    Family.CENTRING: reduce.Centring(),
    Family.CONCAT: layout.Concat(),
    Family.CONVOLUTION: WeightedSum(),
    Family.CUMULATIVE: layout.OffAxes(layout.accumulated),
    Family.DROPOUT: Dropout(),
    Family.EINSUM: WeightedSum(),
    Family.EXPAND: layout.Expand(),
    Family.FILLED: layout.Filled(),
    Family.GATHER: layout.Renames(layout.gathered),
    Family.GATHER_ND: layout.Renames(layout.gathered_by_tuples),
    Family.GEMM: WeightedSum(),
    Family.GROUP_QUERY_ATTENTION: Attention("num_heads", "kv_num_heads", (3, 4), inputs=12),
    Family.MASKED: Masked(),
    Family.MATMUL: WeightedSum(),
    Family.MATMUL_BLOCKS: WeightedSum(),
    Family.MATMUL_FUSED: WeightedSum(),
    Family.MULTI_HEAD_ATTENTION: Attention("num_heads", "num_heads", (6, 7), inputs=8, biases=(3,)),
    Family.PAD: layout.Pad(),
    Family.PRODUCT: Scaled(),
    Family.QUOTIENT: Scaled(division=True),
    Family.REDUCTION: layout.Renames(reduce.unreduced),
    Family.RESHAPE: layout.Reshape(),
    Family.RESIZE: layout.OffAxes(reduce.resampled),
    Family.SCATTER: layout.Scatter(),
    Family.SHAPE: reduce.ReadsNoElements(),
    Family.SHIFT_INVARIANT: reduce.ShiftInvariant(),
    Family.SLICE: Slice(),
    Family.SPATIAL_AVERAGE: layout.OffAxes(reduce.averaged),
    Family.SPLIT: Split(),
    Family.TILE: layout.OffAxes(layout.repeated),
    Family.TRANSPOSE: layout.Renames(layout.transposed),
    Family.TRANSPOSED_CONVOLUTION: WeightedSum(),
}


def transfer_of(node: ir.Node) -> Transfer | None:
    """Return how a node hands fibers on, or None: nothing is known."""
    family = row_of(node).family
    return None if family is None else TRANSFERS[family]


def keeps_order(view: ModelInfo, node: ir.Node, digit: Fiber) -> bool:
    """Whether the elements of a digit that passes through are in the same order behind it."""
    return row_of(node).family is not Family.SLICE or not may_reverse(view, node, digit)


def elements_of(view: ModelInfo, node: ir.Node) -> tuple[Elements, str]:
    """Return what this node does to the numbers of its data inputs, and why no shift passes."""
    row = row_of(node)
    level, why = row.elements, row.no_shift
    for unless in row.unless:
        if unless.elements > level and CONDITIONS[unless.condition](view, node):
            level, why = unless.elements, unless.sentence
    return level, why


def refuse_opaque(node: ir.Node) -> Refusal | None:
    """Return the refusal of an operator known to be opaque or without a row, None of any other."""
    why = row_of(node).opaque
    return None if why is None else refuse(why.code, node, why.sentence)
