"""Linear readers: W (g * x + s) = (W diag(g)) x + W s, from the map of a layer (maps.py)."""

from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Dim, ModelInfo, Shape
from onnxfold.graph.channels import Channels
from onnxfold.graph.operands import operand
from onnxfold.operators.families.linear import without_map
from onnxfold.operators.families.maps import Axes, IndexMap, expert_map, map_of, weight_shape
from onnxfold.operators.families.transfer import refuse, unknown_shape
from onnxfold.operators.row import OF_CODES, Layer
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_PRODUCTS = (Layer.EINSUM, Layer.MATMUL)  # without a bias
_EITHER = (*_PRODUCTS, Layer.GEMM)  # x may be either factor
_NONE = Channels(())
_NO_BIAS = "has no bias per channel of its result"


@dataclass(frozen=True, slots=True)
class AbsorbingLayer:
    """A linear reader and its weight, in the coordinates of its operands.

    ``weight``: the input for W; ``channels``: the place of g in W; ``outer``: the channels of the
    output in W, over whose other axes W s is summed; ``output``: the same channels in the output.
    ``bias``: the input that absorbs W s, times ``factor``; None if the operator has none and the
    output keeps the shift. ``halves``: the number of rows of the bias whose first halves alone
    absorb W s, or 0 for all of it; ``rows``: those of a bias of two axes. ``shift_refusal``: why a
    shift is not constant per channel of the output.
    """

    weight: int
    channels: Channels
    outer: Channels
    output: Channels
    bias: int | None = None
    factor: float = 1.0
    halves: int = 0
    rows: int = 0
    shift_refusal: Refusal | None = None


def absorbing_layers(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> tuple[AbsorbingLayer, ...] | Refusal:
    """Return how each layer of a node absorbs the scale and shift of its input ``index``."""
    if not row_of(node).enters:
        found = absorbing_layer(view, node, index, channels)
        return found if isinstance(found, Refusal) else (found,)
    if index:
        return refuse(RefusalCode.EXACT_READER, node, "needs the values with gamma and beta")
    known = expert_map(view, node)
    if known is None:
        return unknown_shape(node)
    x, w = known.factors
    placed = channels.mapped(lambda digit: known.image(digit, x, w))
    if placed is None:
        sentence = f"does not sum over the channels ({channels})"
        return refuse(RefusalCode.FIBER_BROKEN, node, sentence)
    width, made = view.dim(node.inputs[0], -1), []
    for weight, bias in row_of(node).enters:
        shape = view.shape(operand(node, weight))
        if operand(node, weight) is None:
            continue
        codes = row_of(node).layer in OF_CODES
        outer = None if shape is None else _outer(shape, known, w)
        if shape is None or outer is None or not (codes or shape[-1] == width):
            return unknown_shape(node)
        rows = shape[0] if isinstance(shape[0], int) else 0
        layer = AbsorbingLayer(weight, placed, outer, _NONE, bias=bias, rows=rows)
        made.append(layer)
    return tuple(made)


def absorbing_layer(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """Return how a layer of one weight absorbs the scale and shift of its input ``index``.

    Law: a diagonal over indices shared by x and W is a diagonal of W, and W s varies only along the
    indices of W that the output, or the bias, has.
    """
    layer = row_of(node).layer
    if index > (1 if layer in _EITHER else 0):
        return refuse(RefusalCode.EXACT_READER, node, "needs the values with gamma and beta")
    known = map_of(view, node)
    if not isinstance(known, IndexMap) or len(known.factors) != 2:
        return without_map(node)
    x, w = known.factors[index], known.factors[1 - index]
    labels = known.labels(channels.digits, x)
    if labels is None and known.sizes and channels.axes == (1,):
        return refuse(RefusalCode.GROUPED_CONVOLUTION, node, "has groups that split the channels")
    placed = channels.mapped(lambda digit: known.image(digit, x, w))
    # Axes in an ellipsis may be broadcast, and are then not axes of the weight.
    hidden = any(label.isdigit() for label in labels or ())
    if placed is None or hidden or not (channels.digits or layer in _PRODUCTS):
        sentence = f"does not sum over the channels ({channels}), so they are not in its weight"
        return refuse(RefusalCode.FIBER_BROKEN, node, sentence)
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    factor = alpha / beta if beta else alpha
    outer = _outer(weight_shape(view, node, 1 - index), known, w)
    why = _never_shifts(known, x, w, layer)
    if layer is Layer.MATMUL and len(w) > 2 and _by_batch(view, node, known, index, labels):
        why = "has one weight per batch"
    if outer is None and layer is Layer.EINSUM:
        why = why or _NO_BIAS
    if why is not None:
        shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, why)
        return AbsorbingLayer(1 - index, placed, _NONE, _NONE, factor=factor, shift_refusal=shift)
    if outer is None:
        return unknown_shape(node)
    why = _no_bias_here(view, node, index)
    return AbsorbingLayer(
        1 - index,
        placed,
        outer,
        outer.mapped(lambda digit: known.image(digit, w, known.output)) or _NONE,
        bias=_bias_input(node),
        factor=factor,
        halves=_directions(node),
        shift_refusal=None if why is None else refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, why),
    )


def _bias_input(node: ir.Node) -> int | None:
    """Return the input that takes W s; of a MatMulNBits one that is there: not all devices add it.

    ONNX Runtime makes an Add after it that input where it can.
    """
    index = row_of(node).bias
    added = index is not None and operand(node, index) is not None
    return None if row_of(node).layer is Layer.MATMUL_BLOCKS and not added else index


def _directions(node: ir.Node) -> int:
    """Return the directions of a recurrent layer, whose bias is [Wb, Rb] for each; 0 of others."""
    if row_of(node).layer is not Layer.RECURRENT:
        return 0
    return 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1


def _labels(axes: Axes) -> set[str]:
    return {label.removesuffix("?") for axis in axes for label in axis}


def _outer(shape: Shape | None, known: IndexMap, w: Axes) -> Channels | None:
    """Return the indices of W that the output or the bias has, or None if a size is unknown."""
    kept = _labels((*known.output, *(known.bias or ())))
    digits: list[AxisBlock] = []
    for axis, names in enumerate(w):
        size = (shape or ())[axis] if kept & {*names} else 1
        if not isinstance(size, int):
            return None
        sizes = [known.sizes[name] for name in names] if len(names) > 1 else [size]
        for place, name in enumerate(names):
            if name in kept:
                inner, outer = prod(sizes[place + 1 :]), prod(sizes[:place])
                digits.append(AxisBlock(axis, inner, sizes[place], outer))
    return Channels.of(digits)


def _never_shifts(known: IndexMap, x: Axes, w: Axes, layer: Layer | None) -> str | None:
    """Explain why W s is not one number per output channel, for all layers of this map."""
    if layer not in _PRODUCTS:
        return None
    outside, inside, weight = map(_labels, (known.output, x, w))
    summed = inside - outside
    own = weight - summed
    if layer is Layer.MATMUL:
        return None
    if not summed <= weight or not own <= outside or own & inside:
        return _NO_BIAS
    return None if own else _NO_BIAS


def _by_batch(
    view: ModelInfo, node: ir.Node, known: IndexMap, index: int, labels: frozenset[str] | None
) -> bool:
    """Whether a batched product has no W s for each batch: s varies along them, or W is picked.

    A batch that may be one of several, and broadcast, is none either.
    """
    w = known.factors[1 - index]
    stored = view.tensor(node.inputs[1 - index])
    open_ = any(label.endswith("?") for axis in w for label in axis)
    along = labels is None or any(label in labels for axis in w[:-2] for label in axis)
    return stored is None or open_ or along


def _no_bias_here(view: ModelInfo, node: ir.Node, index: int) -> str | None:
    """Explain why this node cannot absorb W s in its bias."""
    layer = row_of(node).layer
    if layer is Layer.GEMM and index == 1:
        return "would need a bias per row"
    if layer is Layer.GEMM and node.attributes.get_float("beta", 1.0) == 0.0:
        return "omits its bias (beta is 0)"
    if layer is Layer.DEFORMABLE_CONVOLUTION:
        return "moves its positions, also to where zeros are, which have no shift"
    x, w = (view.shape(node.inputs[i]) for i in (0, 1))
    if layer is Layer.TRANSPOSED_CONVOLUTION and (w is None or not _has_one_tap(node, w[2:])):
        return "adds up other positions of its kernel at each place"
    if layer is Layer.CONVOLUTION and (x is None or w is None or _conv_pads(node, x[2:], w[2:])):
        return "pads with zeros, which have no shift"
    return None


def _has_one_tap(node: ir.Node, kernel: Shape) -> bool:
    """Whether a transposed convolution reads the one position below each of its results."""
    spreads = any(step != 1 for step in node.attributes.get_ints("strides", ()) or ())
    names = ("pads", "output_padding", "output_shape")
    more = any(any(node.attributes.get_ints(name, ()) or ()) for name in names)
    alone = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return alone and not spreads and not more and all(taps == 1 for taps in kernel)


def _conv_pads(node: ir.Node, spatial: Shape, kernel: Shape) -> bool:
    """Whether a convolution reads beyond its input; with SAME, if windows do not fill it."""
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        return auto != "VALID" and any(node.attributes.get_ints("pads", ()) or ())
    strides, dilations = (
        node.attributes.get_ints(name, ()) or (1,) * len(kernel)
        for name in ("strides", "dilations")
    )
    return any(
        _same_pads(size, (int(taps or 0) - 1) * dilation, stride)
        for size, taps, dilation, stride in zip(spatial, kernel, dilations, strides, strict=True)
    )


def _same_pads(size: Dim, reach: int, stride: int) -> bool:
    """Whether the last window of SAME, which starts at a multiple of the stride, ends outside."""
    if not isinstance(size, int):
        return reach > 0
    return (-(-size // stride) - 1) * stride + reach >= size
