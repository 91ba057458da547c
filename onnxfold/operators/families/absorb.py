"""Linear readers: W (g * x + s) = (W diag(g)) x + W s, one function per kind of layer.

For each operator: which axis of x is contracted, where the channels of x stand in the weight,
where the channels of the output stand in weight and output, and which input takes a bias.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Dim, ModelInfo, Shape
from onnxfold.graph.channels import Channels
from onnxfold.graph.einsum import einsum_labels
from onnxfold.operators.families.transfer import refuse, unknown_shape
from onnxfold.operators.row import Layer
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class AbsorbingLayer:
    """A linear reader and its weight, in the coordinates of its operands.

    ``weight``: the input that holds W; ``channels``: where g stands in W; ``outer``: the channels
    of the output in W, over whose other axes W s is summed; ``output``: the same channels in the
    output.  ``bias``: the input that takes W s, times ``factor``; None where the operator has none
    and the output keeps the shift.  ``shift_refusal``: why a shift is not constant per channel of
    the output.
    """

    weight: int
    channels: Channels
    outer: Channels
    output: Channels
    bias: int | None = None
    factor: float = 1.0
    shift_refusal: Refusal | None = None


Reader = Callable[[ModelInfo, ir.Node, int, Channels], AbsorbingLayer | Refusal]


def _wrong_side(node: ir.Node, channels: Channels) -> Refusal:
    sentence = f"does not sum over the channels ({channels}), so they are no part of its weight"
    return refuse(RefusalCode.FIBER_BROKEN, node, sentence)


def _exact(node: ir.Node) -> Refusal:
    return refuse(RefusalCode.EXACT_READER, node, "must see the values with gamma and beta")


def _shapes(view: ModelInfo, node: ir.Node, *indices: int) -> tuple[Shape, ...] | None:
    found = [view.shape(node.inputs[i]) if i < len(node.inputs) else None for i in indices]
    known = tuple(shape for shape in found if shape is not None)
    return known if len(known) == len(found) else None


def _matmul(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """MatMul and FusedMatMul: x may be either factor."""
    swapped = [node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")]
    if any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        return refuse(RefusalCode.UNKNOWN_OP, node, "transposes batches, which is not followed")
    shapes = _shapes(view, node, 0, 1)
    if shapes is None or index > 1:
        return unknown_shape(node) if index < 2 else _exact(node)
    x, w = shapes[index], shapes[1 - index]
    if node.domain and min(len(x), len(w)) < 2:
        return unknown_shape(node)
    # The inner axis of A is its last, of B the last but one; of a vector its only one.
    inner = [_inner(shape, side, swapped[side]) for side, shape in enumerate(shapes)]
    from_right = {len(x) - 1 - axis: axis for axis in channels.axes}
    axis_of: dict[int, int] = {}
    batch_free = True
    for back, axis in from_right.items():
        if axis == inner[index]:
            axis_of[axis] = inner[1 - index]
        elif back >= 2 and len(w) - 1 - back >= 0 and w[len(w) - 1 - back] == x[axis]:
            axis_of[axis] = len(w) - 1 - back  # a batch axis that W has as well
            batch_free = False
        else:
            return _wrong_side(node, channels)
    shift: Refusal | None = None
    outer = output = Channels(())
    rest = _rest(w, inner[1 - index])
    if not batch_free or len(w) > 2 or len(rest) > 1:
        shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, "has one weight per batch")
    elif rest:
        (free,) = rest
        size = w[free]
        if not isinstance(size, int):
            return unknown_shape(node)
        rank = max(len(x), len(w)) - (1 if len(x) == 1 else 0)
        outer = Channels.along([(free, size)])
        output = Channels.along([(rank - 1 if index == 0 or len(x) == 1 else rank - 2, size)])
    return AbsorbingLayer(
        1 - index,
        channels.renamed(axis_of),
        outer,
        output,
        factor=node.attributes.get_float("alpha", 1.0),
        shift_refusal=shift,
    )


def _inner(shape: Shape, side: int, swapped: bool) -> int:
    if len(shape) == 1:
        return 0
    return len(shape) - 1 if (side == 0) != swapped else len(shape) - 2


def _rest(shape: Shape, inner: int) -> list[int]:
    return [axis for axis in range(len(shape)) if axis != inner]


def _gemm(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """Gemm: alpha A' B' + beta C with x as A or B."""
    shapes = _shapes(view, node, 0, 1)
    if index > 1:
        return _exact(node)
    if shapes is None:
        return unknown_shape(node)
    swapped = [node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")]
    inner = [_inner(shape, side, swapped[side]) for side, shape in enumerate(shapes)]
    if channels.axes != (inner[index],):
        return _wrong_side(node, channels)
    free = 1 - inner[1 - index]
    size = shapes[1 - index][free]
    if not isinstance(size, int):
        return unknown_shape(node)
    alpha = node.attributes.get_float("alpha", 1.0)
    beta = node.attributes.get_float("beta", 1.0)
    shift = None
    if index == 1:
        shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, "would need a bias per row")
    elif beta == 0.0:
        shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, "leaves its bias out (beta is 0)")
    return AbsorbingLayer(
        1 - index,
        channels.renamed({inner[index]: inner[1 - index]}),
        Channels.along([(free, size)]),
        Channels.along([(1 if index == 0 else 0, size)]),
        bias=2,
        factor=alpha / beta if beta else alpha,
        shift_refusal=shift,
    )


def _conv(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """Conv [out, in/group, *kernel] on [N, in, ..]: any groups; a shift only without padding."""
    shapes = _shapes(view, node, 0, 1)
    if index != 0:
        return _exact(node)
    if shapes is None or not all(isinstance(dim, int) for dim in shapes[1]):
        return unknown_shape(node)
    if channels.axes != (1,):
        return _wrong_side(node, channels)
    group = node.attributes.get_int("group", 1)
    out, inside = (int(dim or 0) for dim in shapes[1][:2])
    placed = _grouped(channels, group, out, inside)
    if placed is None:
        return refuse(RefusalCode.GROUPED_CONVOLUTION, node, "has groups that cut the channels")
    shift = None
    if _conv_pads(node, shapes[0][2:], shapes[1][2:]):
        shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, "pads with zeros, which have no shift")
    return AbsorbingLayer(
        1,
        placed,
        Channels.along([(0, out)]),
        Channels.along([(1, out)]),
        bias=2,
        shift_refusal=shift,
    )


def _grouped(channels: Channels, group: int, out: int, inside: int) -> Channels | None:
    """Input channel c = (c // inside) * inside + c % inside: the group on axis 0, the rest on 1."""
    if group < 1 or inside < 1:
        return None
    digits: list[AxisBlock] = []
    for digit in channels.digits:
        end = digit.inner * digit.size
        if digit.inner >= inside and digit.inner % inside == 0:
            per_group = digit.inner // inside * (out // group)
            digits.append(AxisBlock(0, per_group, digit.size, group * inside // end))
        elif end <= inside and inside % end == 0:
            digits.append(AxisBlock(1, digit.inner, digit.size, inside // end))
        elif end % inside == 0 and inside % digit.inner == 0:
            groups = end // inside
            digits.append(AxisBlock(0, out // group, groups, group // groups))
            digits.append(AxisBlock(1, digit.inner, inside // digit.inner, 1))
        else:
            return None
    return Channels.of(digits)


def _conv_pads(node: ir.Node, spatial: Shape, kernel: Shape) -> bool:
    """Whether a convolution reads beyond its input; with SAME, where windows do not fill it."""
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
    """Whether the last window of SAME, which begins at a multiple of the stride, ends outside."""
    if not isinstance(size, int):
        return reach > 0
    return (-(-size // stride) - 1) * stride + reach >= size


def _conv_transpose(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """ConvTranspose [in, out/group, *kernel]: how many taps meet differs at the borders."""
    if index != 0:
        return _exact(node)
    if channels.axes != (1,):
        return _wrong_side(node, channels)
    shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, "adds up fewer positions at its borders")
    none = Channels(())
    return AbsorbingLayer(1, channels.renamed({1: 0}), none, none, shift_refusal=shift)


def _attention(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """com.microsoft.Attention: input [B, T, in], weights [in, q + k + v], bias [q + k + v]."""
    shapes = _shapes(view, node, 0, 1)
    if index != 0:
        return _exact(node)
    if shapes is None or len(shapes[1]) != 2 or not isinstance(shapes[1][1], int):
        return unknown_shape(node)
    if channels.axes != (len(shapes[0]) - 1,):
        return _wrong_side(node, channels)
    size = shapes[1][1]
    return AbsorbingLayer(
        1,
        channels.renamed({channels.axes[0]: 0}),
        Channels.along([(1, size)]),
        Channels(()),
        bias=2,
    )


def _einsum(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels
) -> AbsorbingLayer | Refusal:
    """Two factors and an explicit result: a label that both factors have is W's as well."""
    labels = einsum_labels(node, [view.rank(factor) for factor in node.inputs])
    if labels is None or len(node.inputs) != 2:
        return refuse(RefusalCode.UNKNOWN_OP, node, "has an equation that is not followed")
    factors, result = labels
    x, w = factors[index], factors[1 - index]
    if any(len(set(term)) != len(term) for term in (x, w, result)):
        return refuse(RefusalCode.UNKNOWN_OP, node, "has an equation that is not followed")
    # What an ellipsis stands for may be repeated, and is then no axis of the weight.
    if any(x[axis] not in w or x[axis].isdigit() for axis in channels.axes):
        return _wrong_side(node, channels)
    own = [label for label in w if label not in x]
    summed = [label for label in x if label not in result]
    sizes = dict(zip(w, view.shape(node.inputs[1 - index]) or (), strict=False))
    known = {label: size for label in own if isinstance(size := sizes.get(label), int)}
    shift = None
    outer = output = Channels(())
    plain = all(label in w for label in summed) and not set(w) - set(own) - set(summed)
    if not own or len(known) < len(own) or not set(own) <= set(result) or not plain:
        shift = refuse(
            RefusalCode.SHIFT_CANNOT_CROSS, node, "has no bias per channel of its result"
        )
    else:
        outer = Channels.along((w.index(label), size) for label, size in known.items())
        output = Channels.along((result.index(label), size) for label, size in known.items())
    placed = channels.renamed({axis: w.index(x[axis]) for axis in channels.axes})
    return AbsorbingLayer(1 - index, placed, outer, output, shift_refusal=shift)


LAYERS: dict[Layer, Reader] = {
    Layer.CONVOLUTION: _conv,
    Layer.EINSUM: _einsum,
    Layer.GEMM: _gemm,
    Layer.MATMUL: _matmul,
    Layer.PACKED_ATTENTION: _attention,
    Layer.TRANSPOSED_CONVOLUTION: _conv_transpose,
}
