"""The transfer functions of every family, and what a node's row declares."""

from collections.abc import Callable, Mapping
from itertools import islice

import onnx_ir as ir

from onnxfold.graph import FLOATS, Fiber, ModelInfo
from onnxfold.graph.operands import operands
from onnxfold.graph.traversal import reached
from onnxfold.operators.families import layout, reduce
from onnxfold.operators.families.attention import Attention
from onnxfold.operators.families.batch_norm import BatchNorm
from onnxfold.operators.families.linear import Linear, refuse_codes, refuse_groups
from onnxfold.operators.families.parts import Slice, Split, may_reverse
from onnxfold.operators.families.transfer import Carried, Transfer, ZeroMean, refuse, unknown_shape
from onnxfold.operators.row import Condition, Elements, Family, Shapes
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_MOST_OF_A_FUNCTION = 12  # values; a GELU spelled with tanh has nine


def refuse_conversion(view: ModelInfo, node: ir.Node, output: int) -> Refusal | None:
    """Say why a Cast is not followed; between floats, P commutes up to the model's own rounding."""
    del view, output
    source = node.inputs[0]
    if source is None or source.dtype not in FLOATS:
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts from a non-floating type")
    if not between_floats(node):
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "converts to a non-floating type")
    return None


def _target(node: ir.Node) -> ir.DataType | None:
    to = node.attributes.get("to")
    if to is not None and not to.is_ref():
        return ir.DataType(to.as_int())
    like = node.inputs[1] if len(node.inputs) > 1 else None
    return None if like is None else like.dtype


def between_floats(node: ir.Node) -> bool:
    """Whether a Cast or CastLike converts one floating type to another."""
    source, target = node.inputs[0], node.outputs[0]
    known = source is not None and source.dtype in FLOATS
    return known and (_target(node) in FLOATS or target.dtype in FLOATS)


def refuse_training(view: ModelInfo, node: ir.Node, output: int) -> Refusal | None:
    """Say why a Dropout, the identity at inference, is not followed."""
    if output != 0 or trains(view, node):
        return refuse(RefusalCode.ACTIVATION, node, "may run in training mode")
    return None


def trains(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Dropout may run in training mode."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is not None and view.scalar(training) != 0.0


def nothing_of(view: ModelInfo, node: ir.Node, output: int) -> ZeroMean | None:
    """Return that 0 * x is 0 whatever x is: zeros of its shape, as graph networks add to."""
    del output
    arrays = (view.array(factor) for factor in node.inputs)
    zeros = any(array is not None and array.size > 0 and not array.any() for array in arrays)
    return ZeroMean() if zeros else None


def refuse_factors(view: ModelInfo, node: ir.Node, fiber: Fiber) -> Refusal:
    """Say why a product or quotient does not carry a fiber."""
    del fiber
    if None in map(view.shape, node.inputs):
        return unknown_shape(node)
    shared = _shared_source(view, node)
    if shared is not None:
        sentence = f"joins two functions of '{shared.name}', which is not linear"
        return refuse(RefusalCode.ACTIVATION, node, sentence)
    sentence = "multiplies or divides by values that vary along the normalized elements"
    return refuse(RefusalCode.VARIES_ALONG_FIBER, node, sentence)


def _shared_source(view: ModelInfo, node: ir.Node) -> ir.Value | None:
    """Return the value from which both operands are computed elementwise, as in a GELU."""
    first, second = (_sources(view, operand) for operand in node.inputs)
    return next((value for value in first if value in second), None)


def _sources(view: ModelInfo, value: ir.Value | None) -> dict[ir.Value, None]:
    """Return a value and the values a few operators upstream that keep or broadcast shapes."""

    def onward(computed: ir.Value) -> list[ir.Value]:
        maker = computed.producer()
        spreads = maker is not None and row_of(maker).shape in (Shapes.SAME, Shapes.BROADCAST)
        return [each for each in operands(maker) if view.tensor(each) is None] if spreads else []

    starts = [] if value is None or view.tensor(value) is not None else [value]
    return dict.fromkeys(islice(reached(starts, onward), _MOST_OF_A_FUNCTION))


_PLAIN = Linear()
_LAYER = Linear(why=refuse_groups)

TRANSFERS: Mapping[Family, Transfer] = {
    Family.ADDITIVE: _PLAIN,
    Family.ATTENTION: Attention("q_num_heads", "kv_num_heads", (4, 5), inputs=7),
    Family.BATCH_NORM: BatchNorm(),
    Family.CAST: Linear(refuse_conversion),
    Family.CENTRING: reduce.Centring(),
    Family.CONCAT: Linear(why=layout.refuse_joining),
    Family.CONVOLUTION: _LAYER,
    Family.CUMULATIVE: _PLAIN,
    Family.DEFORMABLE_CONVOLUTION: _LAYER,
    Family.DROPOUT: Linear(refuse_training),
    Family.EINSUM: _LAYER,
    Family.EXPAND: _PLAIN,
    Family.EXPERTS: _PLAIN,
    Family.FILLED: layout.Filled(),
    Family.GATHER: _PLAIN,
    Family.GATHER_ND: _PLAIN,
    Family.GEMM: _LAYER,
    Family.GROUP_QUERY_ATTENTION: Attention(
        "num_heads", "kv_num_heads", (3, 4), inputs=12, sinks=True
    ),
    Family.MASKED: _PLAIN,
    Family.MATMUL: _LAYER,
    Family.MATMUL_BLOCKS: Linear(why=refuse_codes),
    Family.MATMUL_FUSED: _LAYER,
    Family.MULTI_HEAD_ATTENTION: Attention("num_heads", "num_heads", (6, 7), inputs=8, biases=(3,)),
    Family.PAD: Linear(layout.refuse_padding),
    Family.PRODUCT: Linear(nothing_of, refuse_factors),
    Family.QUOTIENT: Linear(why=refuse_factors),
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
    return not between_floats(node)


def _pads_numbers(view: ModelInfo, node: ir.Node) -> bool:
    return layout.pads_constant(node) and layout.pad_value(view, node) != 0.0


def _pads_zeros(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Pad may add anything that is not in its input."""
    pads = layout.pads_of(view, node)
    return layout.pads_constant(node) and (pads is None or any(pads))


def _reduces_otherwise(view: ModelInfo, node: ir.Node) -> bool:
    return not layout.scatters_linearly(node)


def _trains(view: ModelInfo, node: ir.Node) -> bool:
    return trains(view, node)


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
