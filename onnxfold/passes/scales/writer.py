"""Backward from z = c * y + d per channel to the linear layer that computes y.

A diagonal after W x + b becomes part of W and b: c * (W x + b) + d = (diag(c) W) x + (c * b + d). A
norm that stays in between absorbs them in its gamma and beta: c (g x + b) = (c g) x + c b. Allowed
between the two are operators that move elements without another reader, the Add of a bias, and for
one number c also a rotary embedding and the product with another activation (attention scores).
After one part of a joint projection, c and d apply to the part, and are 1 and 0 elsewhere.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, Reader
from onnxfold.graph.channels import SCALAR, Channels
from onnxfold.graph.constants import Array, Float64
from onnxfold.graph.operands import (
    is_read_once,
    known_operand,
    known_producer,
    operand,
    producer_of,
)
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.batch_norm import channel_factors
from onnxfold.operators.families.cut_parts import AxisPart, cut_of, element_readers, only_part
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.operators.families.reactions import before_layout
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.operators.row import Elements, Layer
from onnxfold.operators.table import row_of
from onnxfold.passes.scales.constant_operands import (
    bias_root,
    carries_factor,
    common_source,
    factor_of,
    is_weight,
    norm_constants,
)
from onnxfold.refusal import Refusal, RefusalCode

_PRODUCTS = (Layer.EINSUM, Layer.MATMUL)  # either factor may be the weight
_GROUPED = (Layer.CONVOLUTION, Layer.DEFORMABLE_CONVOLUTION)
_MOST_STEPS = 64  # operators between that stay; unbounded, long sums would cost quadratic time
# Fewer operators stand between when others have moved.
TOO_FAR = Refusal(RefusalCode.NOT_WORTH, f"its layer is more than {_MOST_STEPS} operators upstream")


@dataclass(frozen=True, slots=True, eq=False)
class ChannelOp:
    """A node that computes z = scale * y + shift per channel, y its input ``index``."""

    node: ir.Node
    index: int
    channels: Channels
    scale: Float64 | None
    shift: Float64 | None


@dataclass(frozen=True, slots=True)
class LinearWriter:
    """The linear layer upstream of a channel operator, and every constant that its scale reaches.

    ``output`` are the channels in the layer's output. ``weight`` and ``biases`` are roots with the
    channels in their own coordinates; ``new_bias`` is an input that may receive a bias. ``part``:
    start, length and total if the operator follows one part of a value, so that its scale applies
    to some of the channels, and is 1 for the others.
    """

    node: ir.Node
    output: Channels
    weight: EditPlace
    biases: tuple[EditPlace, ...]
    new_bias: Reader | None
    part: tuple[int, int, int] | None = None


def embedded(
    vector: Float64, part: tuple[int, int, int] | None, size: int, *, neutral: float = 1.0
) -> Float64:
    """Return a scale (``neutral`` 1) or shift (0) of a part as one of all ``size`` channels."""
    if part is None or size != part[2]:
        return vector
    start, length, total = part
    whole = np.full(total, neutral)
    whole[start : start + length] = vector
    return whole


def channel_op(view: ModelInfo, node: ir.Node) -> ChannelOp | None:
    """Return the per-channel effect of Mul, Div, Add, Sub, Neg or BatchNormalization."""
    if node.domain != "":
        return None
    if node.op_type == "BatchNormalization":
        return _batch_norm(view, node)
    if node.op_type == "Neg":
        moves = known_operand(node, 0).dtype in FLOATS and view.array(node.inputs[0]) is None
        return ChannelOp(node, 0, SCALAR, np.full(1, -1.0), None) if moves else None
    # Each of these has its own formula.
    if node.op_type not in ("Add", "Div", "Mul", "Sub") or len(node.inputs) != 2:
        return None
    for index in (0, 1) if node.op_type in ("Add", "Mul") else (0,):
        y, constant = node.inputs[index], node.inputs[1 - index]
        # Without roundings, as in the proof and the check: sqrt(1 / sqrt(d)) before attention.
        array, rank = view.wide_array(constant), view.rank(y)
        if array is None or y is None or rank is None or array.dtype.kind != "f":
            continue
        if view.array(y) is not None or array.ndim > rank:
            return None
        return _elementwise(view, node, index, y, array)
    return None


def _elementwise(
    view: ModelInfo, node: ir.Node, index: int, y: ir.Value, array: Array
) -> ChannelOp | None:
    shape = view.shape(y) or ()
    aligned = array.reshape((1,) * (len(shape) - array.ndim) + array.shape).astype(np.float64)
    if any(size not in (1, dim) for size, dim in zip(aligned.shape, shape, strict=True)):
        return None
    channels = Channels.along((axis, n) for axis, n in enumerate(aligned.shape) if n > 1)
    vector = aligned.reshape(-1)
    with np.errstate(all="ignore"):
        vector = 1.0 / vector if node.op_type == "Div" else vector
    if not np.all(np.isfinite(vector)):
        return None
    if node.op_type in ("Mul", "Div"):
        return ChannelOp(node, index, channels, vector, None)
    return ChannelOp(node, index, channels, None, -vector if node.op_type == "Sub" else vector)


def _batch_norm(view: ModelInfo, node: ir.Node) -> ChannelOp | None:
    """(y - mean) * scale / sqrt(var + epsilon) + B on axis 1, in inference mode."""
    found = channel_factors(view, node)
    if found is None:
        return None
    return ChannelOp(node, 0, Channels.along([(1, found[0].size)]), *found)


def writer_of(
    view: ModelInfo,
    op: ChannelOp,
    passed: Mapping[ir.Value, ir.Value],
    norms: Mapping[ir.Value, NormSite],
    varied: Container[Reader] = (),
) -> LinearWriter | Refusal:
    """Return the linear layer that computes the operator's input, through unshared values.

    ``passed``: the results of channel operators that are absorbed as well, each with the value
    before them all; ``norms``: norms of one operator, by their results; ``varied``: operands to
    which channel operators that are absorbed as well give different numbers.
    """
    value, channels = op.node.inputs[op.index], op.channels
    biases: list[EditPlace] = []
    part: tuple[int, int, int] | None = None
    known: ir.Value | None = None  # a value whose readers have all been examined
    for _ in range(_MOST_STEPS):
        node = producer_of(value)
        if value is None or node is None:
            break
        if (len(element_readers(value)) != 1 and value is not known) or value.is_graph_output():
            return refuse(RefusalCode.EXACT_READER, node, "has other readers of its result")
        if node.graph is not op.node.graph:
            return refuse(RefusalCode.BODY_BORDER, node, "is in another graph")
        if facets.takes_scale(row_of(node)):
            made = _writer(view, node, channels, biases)
            if isinstance(made, LinearWriter):
                return replace(made, part=part)
            if isinstance(made, Refusal):
                return made
            value = node.inputs[made]
            continue
        cut = _cut_here(view, value, channels)
        if cut is not None:
            whole = _before_cut(view, op, value, cut, channels, part)
            if isinstance(whole, Refusal):
                return whole
            value, channels, part = cut.source, *whole
            known = value
            continue
        source = None if channels.digits else _met(view, node, value)
        if source is not None:
            value = known = source
            continue
        step = _back(view, node, channels, biases, passed)
        if isinstance(step, Refusal):
            taker = _constants(view, op, norms.get(value), value, channels, biases)
            direct = len(op.node.inputs) > 1 and before_passed(op, passed) is value
            takes = taker is not None and _may_take(view, op, taker, varied, direct=direct)
            return replace(taker, part=part) if taker is not None and takes else step
        value, channels = step
    else:
        return TOO_FAR
    return refuse(RefusalCode.ACTIVATION, op.node, "does not follow a linear layer")


def _cut_here(view: ModelInfo, value: ir.Value, channels: Channels) -> AxisPart | None:
    """Return the part of another value that this value is, if it has its own scale."""
    cut = cut_of(view, value)
    if cut is None or facets.scales_every_output(row_of(known_producer(value))):
        return cut
    alone = len(element_readers(cut.source)) == 1
    if not channels.digits:
        return None if alone else cut  # alone, one number applies to all of the source
    return cut if cut.axis in channels.axes else None


def _met(view: ModelInfo, node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the common source of both operands of a sum, or of all of a Concat."""
    constant = any(view.tensor(operand) is not None for operand in node.inputs)
    row = row_of(node)
    joins = row.data is None and not row.alone and row.elements <= Elements.LINEAR
    return common_source(view, value) if joins and not constant else None


def _before_cut(
    view: ModelInfo,
    op: ChannelOp,
    value: ir.Value,
    cut: AxisPart,
    channels: Channels,
    part: tuple[int, int, int] | None,
) -> tuple[Channels, tuple[int, int, int]] | Refusal:
    """Return the channels before a cut, and which of them belong to the part."""
    node = value.producer() or op.node
    if not only_part(view, value, cut):
        return refuse(RefusalCode.EXACT_READER, node, "has an input with other readers")
    own = Channels.along([(cut.axis, cut.length)])
    if op.shift is not None and channels != own:
        return refuse(RefusalCode.FIBER_BROKEN, node, "is split along other channels")
    if op.shift is None and (op.scale is None or bool(np.all(op.scale == 1))):
        return refuse(RefusalCode.VARIES_ALONG_FIBER, node, "has no constant for a part")
    if channels.digits and channels != own:
        return refuse(RefusalCode.FIBER_BROKEN, node, "is split along other channels")
    start, length = cut.start, cut.length
    if part is not None and channels.digits:
        start, length = start + part[0], part[1]
    return Channels.along([(cut.axis, cut.total)]), (start, length, cut.total)


def _back(
    view: ModelInfo,
    node: ir.Node,
    channels: Channels,
    biases: list[EditPlace],
    passed: Mapping[ir.Value, ir.Value],
) -> tuple[ir.Value, Channels] | Refusal:
    absorbed = passed.get(node.outputs[0])
    if absorbed is not None:
        return absorbed, channels
    moved = before_layout(view, node.outputs[0], channels)
    if moved is not None:
        return moved
    if not channels.digits and _scales_first(view, node):
        operand = node.inputs[0]
        if operand is not None and view.tensor(operand) is None:
            return operand, channels
    if len(node.inputs) != 2 or 1 not in row_of(node).adds_first:
        return refuse(RefusalCode.ACTIVATION, node, "is not linear per channel")
    for index in (0, 1):
        root = bias_root(view, Reader(node, index), channels, node.outputs[0])
        if root is not None and view.rank(node.inputs[1 - index]) == view.rank(node.outputs[0]):
            biases.append(root)
            return known_operand(node, 1 - index), channels
    return refuse(RefusalCode.VARIES_ALONG_FIBER, node, "adds something else")


def _scales_first(view: ModelInfo, node: ir.Node) -> bool:
    """Whether c times the one data input is c times the one output."""
    row = row_of(node)
    one = row.data == (0,) and not facets.scales_every_output(row)
    return one and carries_factor(view, node, (0,))


def before_passed(op: ChannelOp, passed: Mapping[ir.Value, ir.Value]) -> ir.Value:
    """Return the operand of an operator once those before it are absorbed."""
    value = known_operand(op.node, op.index)
    return passed.get(value, value) if is_read_once(value) else value


def _may_take(
    view: ModelInfo,
    op: ChannelOp,
    taker: LinearWriter,
    varied: Container[Reader],
    *,
    direct: bool,
) -> bool:
    """Whether a second run finds nothing that the first one left.

    Ones and zeros in an operator replace missing parameters of the original norm. That norm could
    not absorb signs, nor scales with a beta or after operators that move elements.
    """
    if direct and (op.scale is None or not taker.biases):
        return True
    place = taker.weight if op.scale is not None or not taker.biases else taker.biases[0]
    array = None if place.reader in varied else view.array(place.value)
    return array is None or array.size == 1 or not bool(np.all(array == array.flat[0]))


def _constants(
    view: ModelInfo,
    op: ChannelOp,
    site: NormSite | None,
    value: ir.Value,
    channels: Channels,
    biases: list[EditPlace],
) -> LinearWriter | None:
    """Return a sum, a product or a norm that absorbs the operator instead of a linear layer.

    (y + b) + d = y + (b + d), and c (g n(x) + b) = (c g) n(x) + c b: all of the norm's constants
    absorb a scale.
    """
    node = known_producer(value)
    if site is not None and not (op.shift is not None and biases):
        found = norm_constants(view, site, channels)
        if found is None:
            return None
        gamma, betas, new_beta = found
        return LinearWriter(node, channels, gamma, (*biases, *betas), new_beta)
    places = biases if op.scale is None else factor_of(view, value, channels)
    if not places:
        return None
    return LinearWriter(node, channels, places[0], tuple(biases), None)


def _writer(
    view: ModelInfo, node: ir.Node, channels: Channels, biases: list[EditPlace]
) -> LinearWriter | Refusal | int:
    """Return the writer, or the input in which the walk continues if both are activations."""
    places = _operands(view, node, channels)
    if places is None:
        return refuse(RefusalCode.FIBER_BROKEN, node, "has channels that are not its weight's")
    index, inner = places
    root = root_of(view, Reader(node, index), inner, SCALAR)
    if isinstance(root, Refusal):
        dynamic = root.code is RefusalCode.DYNAMIC_WEIGHT
        product = row_of(node).layer in _PRODUCTS
        return index if dynamic and not channels.digits and product else root
    found = list(biases)
    new_bias = None
    if row_of(node).bias is not None:
        if node.attributes.get_float("beta", 1.0) != 1.0:
            return refuse(RefusalCode.VARIES_ALONG_FIBER, node, "multiplies its bias")
        reader = Reader(node, row_of(node).bias or 0)
        bias = operand(node, reader.index)
        if bias is None:
            new_bias = reader
        else:
            place = _in_operand(map_of(view, node), channels, reader.index)
            if view.tensor(bias) is None or place is None:
                return refuse(RefusalCode.DYNAMIC_WEIGHT, node, "has a bias that cannot follow")
            found.append(EditPlace(bias, reader, place, SCALAR))
    return LinearWriter(node, channels, root, tuple(found), new_bias)


def _operands(view: ModelInfo, node: ir.Node, channels: Channels) -> tuple[int, Channels] | None:
    """Return the input with the output's channels, and their place in it."""
    if not channels.digits:
        first = row_of(node).layer in _PRODUCTS and not is_weight(view, node, 1)
        return (0 if first else row_of(node).weight), SCALAR
    known = map_of(view, node)
    count = len(known.factors) if isinstance(known, IndexMap) else 0
    places = ((index, _in_operand(known, channels, index)) for index in range(count))
    held = [(index, place) for index, place in places if place is not None]
    several = row_of(node).layer in _GROUPED  # of groups, which x has too
    return held[-1] if len(held) == 1 or (held and several) else None


def _in_operand(
    known: IndexMap | Refusal | None, channels: Channels, index: int
) -> Channels | None:
    """Return the channels of the output in an operand, or None if it lacks one."""
    if not channels.digits:
        return SCALAR
    if not isinstance(known, IndexMap):
        return None
    return channels.mapped(partial(known.image, old=known.output, new=known.operand(index)))
