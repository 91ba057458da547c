"""The transfer functions of every family, and what a node's row declares."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.operators.families import elementwise, layout, reduce
from onnxfold.operators.families.attention import Attention
from onnxfold.operators.families.batch_norm import BatchNorm
from onnxfold.operators.families.linear import Linear, refuse_codes, refuse_groups
from onnxfold.operators.families.parts import Slice, Split, may_reverse
from onnxfold.operators.families.transfer import Carried, Transfer, refuse
from onnxfold.operators.row import Condition, Elements, Family
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal

_PLAIN = Linear()
_LAYER = Linear(why=refuse_groups)

TRANSFERS: Mapping[Family, Transfer] = {
    Family.ADDITIVE: _PLAIN,
    Family.ATTENTION: Attention("q_num_heads", "kv_num_heads", (4, 5), inputs=7),
    Family.BATCH_NORM: BatchNorm(),
    Family.CAST: Linear(elementwise.refuse_conversion),
    Family.CENTRING: reduce.Centring(),
    Family.CONCAT: Linear(why=layout.refuse_joining),
    Family.CONVOLUTION: _LAYER,
    Family.CUMULATIVE: _PLAIN,
    Family.DEFORMABLE_CONVOLUTION: _LAYER,
    Family.DROPOUT: Linear(elementwise.refuse_training),
    Family.EINSUM: _LAYER,
    Family.EXPAND: _PLAIN,
    Family.EXPERTS: _PLAIN,
    Family.FILLED: layout.Filled(),
    Family.GATHER: _PLAIN,
    Family.GATHER_ND: _PLAIN,
    Family.GEMM: _LAYER,
    Family.GROUP_QUERY_ATTENTION: Attention("num_heads", "kv_num_heads", (3, 4), inputs=12),
    Family.MASKED: _PLAIN,
    Family.MATMUL: _LAYER,
    Family.MATMUL_BLOCKS: Linear(why=refuse_codes),
    Family.MATMUL_FUSED: _LAYER,
    Family.MULTI_HEAD_ATTENTION: Attention("num_heads", "num_heads", (6, 7), inputs=8, biases=(3,)),
    Family.PAD: Linear(layout.refuse_padding),
    Family.PRODUCT: Linear(elementwise.nothing_of, elementwise.refuse_factors),
    Family.QUOTIENT: Linear(why=elementwise.refuse_factors),
    Family.REDUCTION: _PLAIN,
    Family.RESHAPE: layout.Reshape(),
    Family.RESIZE: _PLAIN,
    Family.SCATTER: _PLAIN,
    Family.SHAPE: reduce.ReadsNoElements(),
    Family.SHIFT_INVARIANT: reduce.ShiftInvariant(),
    Family.SLICE: Slice(),
    Family.SPATIAL_AVERAGE: _PLAIN,
    Family.SPLIT: Split(),
    Family.TILE: _PLAIN,
    Family.TRANSPOSE: _PLAIN,
    Family.TRANSPOSED_CONVOLUTION: _LAYER,
}


def transfer_of(node: ir.Node) -> Transfer | None:
    """Return how a node passes fibers on, or None if unknown."""
    family = row_of(node).family
    return None if family is None else TRANSFERS[family]


def keeps_order(view: ModelInfo, node: ir.Node, digit: Fiber) -> bool:
    """Whether the elements of a digit that passes through keep their order."""
    return row_of(node).family is not Family.SLICE or not may_reverse(view, node, digit)


def elements_of(view: ModelInfo, node: ir.Node) -> tuple[Elements, str]:
    """Return the effect of this node on the numbers of its data inputs, and why no shift passes."""
    row = row_of(node)
    level, why = row.elements, row.no_shift
    for unless in row.unless:
        if unless.elements > level and _CONDITIONS[unless.condition](view, node):
            level, why = unless.elements, unless.sentence
    return level, why


def refuse_opaque(node: ir.Node) -> Refusal | None:
    """Return the refusal of an operator that is opaque or lacks a row, or None."""
    why = row_of(node).opaque
    return None if why is None else refuse(why.code, node, why.sentence)


def _averages_padding(view: ModelInfo, node: ir.Node) -> bool:
    """Whether an AveragePool may count what is not there; a last, partial window may."""
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = any(node.attributes.get_ints("pads", ()) or ()) or auto not in ("NOTSET", "VALID")
    partial = node.attributes.get_int("ceil_mode", 0) != 0
    return partial or (pads and node.attributes.get_int("count_include_pad", 0) != 0)


def _extrapolates(view: ModelInfo, node: ir.Node) -> bool:
    transform = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    return transform == "tf_crop_and_resize"


def _not_of_floats(view: ModelInfo, node: ir.Node) -> bool:
    return not elementwise.between_floats(node)


def _pads_numbers(view: ModelInfo, node: ir.Node) -> bool:
    return layout.pads_constant(node) and layout.pad_value(view, node) != 0.0


def _pads_zeros(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Pad may add anything that is not in its input."""
    pads = layout.pads_of(view, node)
    return layout.pads_constant(node) and (pads is None or any(pads))


def _reduces_otherwise(view: ModelInfo, node: ir.Node) -> bool:
    return not layout.scatters_linearly(node)


def _trains(view: ModelInfo, node: ir.Node) -> bool:
    return elementwise.trains(view, node)


_CONDITIONS: Mapping[Condition, Callable[[ModelInfo, ir.Node], bool]] = {
    Condition.AVERAGES_PADDING: _averages_padding,
    Condition.EXTRAPOLATES: _extrapolates,
    Condition.NOT_OF_FLOATS: _not_of_floats,
    Condition.PADS_NUMBERS: _pads_numbers,
    Condition.PADS_ZEROS: _pads_zeros,
    Condition.REDUCES_OTHERWISE: _reduces_otherwise,
    Condition.TRAINS: _trains,
}


def digit_behind(
    view: ModelInfo, node: ir.Node, index: int, position: int, digit: Fiber
) -> Fiber | None:
    """Return the place of one digit in an output, confirmed from the output back, or None."""
    transfer = transfer_of(node)
    if transfer is None or not keeps_order(view, node, digit):
        return None
    for output, outer in transfer.forward(view, node, index, digit) or ():
        if output != position:
            continue
        confirmed = transfer.backward(view, node, output, outer)
        if isinstance(confirmed, Carried) and (index, digit) in confirmed.inputs:
            return outer
    return None
