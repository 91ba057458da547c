"""Linear layers that absorb r and s of their input: what changes for each, and new biases.

The scale left in a norm whose gamma moves: a power of two, which W absorbs exactly.

    y W = (n s) (diag(g / s) W)                          for any s > 0

A norm of one operator always multiplies by a scale, and runtimes fuse a spelled-out norm only with
a product after it. Simplifiers remove products by ones (docs/pipeline.md), so s is 1/2: 2 g W is as
exact as g W. If half floats cannot represent the result, s is 2, unless g W / 2 has fewer digits
than g W.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import HALVES, Float64
from onnxfold.operators.families.absorb import AbsorbingLayer
from onnxfold.operators.families.cut_parts import cut_of, element_readers
from onnxfold.operators.families.reactions import adds_bias, behind_layout
from onnxfold.operators.families.transfer import IGNORED, refuse
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.passes.affine.affine_walk import ReachedLayer
from onnxfold.passes.affine.plan import Absorption
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.places import Place, place_of, ref_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.targets.costs import Work, elements, work_beside
from onnxfold.weights.dequantised import holder_of, quantised_weight
from onnxfold.weights.edited import Product
from onnxfold.weights.evaluation import Scale, Shift
from onnxfold.weights.half_weights import refuse_few_bits
from onnxfold.weights.narrow import refuse_narrow

_HALF, _TWO = 0.5, 2.0


def absorption(view: ModelInfo, item: ReachedLayer) -> Absorption | Refusal:
    """Return the constants of one layer that absorb r and s, or why they cannot change."""
    node, absorbs = item.reader.node, item.absorbs
    root = root_of(view, Reader(node, absorbs.weight), absorbs.channels, absorbs.outer, fixed=True)
    if isinstance(root, Refusal):
        return root
    if root.fixed:
        numbers = quantised_weight(view, holder_of(root.value, root.reader))
        unfit = numbers if isinstance(numbers, Refusal) else None
    else:
        unfit = refuse_narrow(view, root.value)
    if unfit is not None:
        return unfit
    weight = place_of(view, root.value, root.reader, root.channels)
    weight = replace(weight, fixed=root.fixed)
    disjoint = not set(root.outer.axes) & set(root.channels.axes) or absorbs.bias is not None
    bias = bias_of(view, node, absorbs, root) if disjoint else None
    made = Absorption(
        ref_of(view, item.reader), weight, root.outer, bias, absorbs.factor, start=item.start
    )
    if bias is not None or not disjoint or absorbs.bias is not None:
        return made
    return replace(made, parts=parts_of(view, node.outputs[0], absorbs))


def refuse_few_bits_of(
    view: ModelInfo, r: Float64, dtype: ir.DataType | None, readers: Iterable[Absorption]
) -> Refusal | None:
    """Name a weight that r would leave with too few bits, if any."""
    if dtype not in HALVES:
        return None
    values = view.by_ref()
    for reader in readers:
        weight = values[reader.weight.value]
        scale = Scale(reader.weight.channels, reader.placed(r, 1.0))
        why = refuse_few_bits(view.tensor(weight), scale, reader.outer.axes, weight.name or "")
        if why is not None:
            return why
    return None


def absorb(places: PlaceEditor, reader: Absorption, r: Float64 | None, s: Float64 | None) -> None:
    """Change the weight and the bias of one layer."""
    weight = reader.weight
    tensor = places.numbers(weight)
    change = places.change if reader.start is None else places.append  # others may edit the rest
    if s is not None:
        for place in reader.biases:
            part = slice(place.start, place.start + place.channels.size)
            outer, factor = reader.outer, reader.factor
            beta = reader.placed(s, 0.0)
            product = Product(tensor, beta, weight.channels, outer, factor, part, place.halves)
            change(place, Shift(place.channels, product))
    if r is not None:
        change(weight, Scale(weight.channels, reader.placed(r, 1.0)))


def bias_of(
    view: ModelInfo, node: ir.Node, absorbs: AbsorbingLayer, root: EditPlace
) -> Place | None:
    """Return the constant that absorbs W beta: the operator's own bias, or a following Add's."""
    if absorbs.shift_refusal is not None or node.outputs[0].name is None:
        return None
    size = absorbs.outer.size
    if absorbs.bias is not None:
        operand = node.inputs[absorbs.bias] if absorbs.bias < len(node.inputs) else None
        reader = Reader(node, absorbs.bias)
        if absorbs.halves:
            return _first_halves(view, operand, reader, absorbs)
        if absorbs.rows:
            return _of_rows(view, operand, reader, absorbs)
        if operand is None:
            return Place("", ref_of(view, reader), Channels.along([(0, size)]), 0)
        shape = shape_of(view, operand)
        if shape is None or not shape or shape[-1] != size or any(d != 1 for d in shape[:-1]):
            return None
        return place_of(view, operand, reader, Channels.along([(len(shape) - 1, size)]))
    return _added(view, node.outputs[0], absorbs.output)


def _first_halves(
    view: ModelInfo, operand: ir.Value | None, reader: Reader, absorbs: AbsorbingLayer
) -> Place | None:
    """Return the bias [Wb, Rb] of a recurrent layer, whose Wb absorbs W beta."""
    rows, size = absorbs.halves, 2 * absorbs.outer.size
    channels = Channels.along([(0, rows), (1, size // rows)])
    if operand is None:
        return Place("", ref_of(view, reader), channels, halves=rows)
    if shape_of(view, operand) != (rows, size // rows):
        return None
    return replace(place_of(view, operand, reader, channels), halves=rows)


def _of_rows(
    view: ModelInfo, operand: ir.Value | None, reader: Reader, absorbs: AbsorbingLayer
) -> Place | None:
    """Return the bias of experts, a row for each."""
    rows, size = absorbs.rows, absorbs.outer.size
    channels = Channels.along([(0, rows), (1, size // rows)])
    if operand is None:
        return Place("", ref_of(view, reader), channels, rows=rows)
    if shape_of(view, operand) != (rows, size // rows):
        return None
    return place_of(view, operand, reader, channels)


def parts_of(view: ModelInfo, value: ir.Value, absorbs: AbsorbingLayer) -> tuple[Place, ...]:
    """Return the constants added to the parts of ``value`` along its channels, all or none.

    These are the remains of joint projections: q, k and v are one product, each with its own bias,
    cut apart by a Split or by Slices.
    """
    readers, output = element_readers(value), absorbs.output
    if absorbs.shift_refusal is not None or view.is_output(value) or len(output.digits) != 1:
        return ()
    places: list[Place] = []
    for part in (part for node in readers for part in node.outputs):
        cut = cut_of(view, part)
        producer = part.producer()
        if cut is None or cut.source is not value or (cut.axis,) != output.axes or cut.length < 2:
            return ()
        channels = Channels.along([(cut.axis, cut.length)])
        place = _added(view, part, channels)
        if place is None or producer is None or producer.graph is not value.graph:
            return ()
        places.append(replace(place, start=cut.start))
    places.sort(key=lambda place: place.start)
    ends = [place.start + place.channels.size for place in places]
    beginnings = [place.start for place in places]
    tiled = beginnings == [0, *ends[:-1]] and ends[-1:] == [output.size]
    return tuple(places) if tiled and len(places) > 1 else ()


def _added(view: ModelInfo, value: ir.Value, output: Channels) -> Place | None:
    """Return the constant of an Add or BiasGelu, the only reader of ``value``, along its channels.

    Layouts may come between: exports of TensorFlow first restore the batch of a product.
    """
    reader = _only_reader(view, value)
    while reader is not None and not adds_bias(reader.node, reader.index):
        moved = behind_layout(view, reader, output)
        if moved is None:
            return None
        value, output = moved
        reader = _only_reader(view, value)
    if reader is None:
        return None
    node, index = reader.node, reader.index
    operand = node.inputs[1 - index]
    shape, rank = shape_of(view, operand), view.rank(value)
    if operand is None or shape is None or rank is None or len(shape) > rank:
        return None
    offset = rank - len(shape)
    sizes = {digit.axis: digit.size for digit in output.digits}
    if any(axis < offset for axis in sizes):
        return None
    if any(dim != sizes.get(axis + offset, 1) for axis, dim in enumerate(shape)):
        return None
    channels = output.renamed({axis: axis - offset for axis in output.axes})
    return place_of(view, operand, Reader(node, 1 - index), channels)


def _only_reader(view: ModelInfo, value: ir.Value) -> Reader | None:
    """Return the only reader of a value, in the graph that computes it."""
    readers = view.readers(value)
    if len(readers) != 1 or view.is_output(value) or readers[0].node.graph is not value.graph:
        return None
    return readers[0]


def shape_of(view: ModelInfo, value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant of a floating type; None for other values."""
    tensor = view.tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    return tuple(tensor.shape.numpy())


def is_kept_scale(gamma: Float64) -> bool:
    """Whether a gamma is one power of two other than 1, which is not worth moving."""
    mantissa, exponent = np.frexp(gamma[:1])
    return bool(gamma.size and mantissa[0] == 0.5 and exponent[0] != 1 and np.ptp(gamma) == 0)


def kept_scale(view: ModelInfo, gamma: Float64, readers: Iterable[Absorption]) -> float | Refusal:
    """Return the scale that all readers of a norm can absorb, or why there is none."""
    left = _HALF
    for reader in readers:
        tensor = view.tensor(view.by_ref()[reader.weight.value])
        if tensor is None or tensor.dtype is not ir.DataType.FLOAT16:
            continue  # other types have the exponents of float32 or more
        shape = tuple(tensor.shape.numpy())
        factor = reader.weight.channels.spread(reader.placed(gamma, 1.0), shape)
        sizes = np.abs(tensor.numpy().astype(np.float64) * factor)
        limits = np.finfo(np.float16)
        if 2 * sizes.max(initial=0.0) <= float(limits.max):
            continue
        left = _TWO
        if np.any((sizes > 0) & (sizes < 2 * float(limits.smallest_normal))):
            name = reader.weight.value
            sentence = f"weight '{name}' can absorb neither 1/2 nor 2 as {tensor.dtype}"
            return Refusal(RefusalCode.NON_FINITE_WEIGHT, sentence, (name,))
    return left


@dataclass(frozen=True, slots=True)
class Shifted:
    """A norm or a BatchNormalization whose shift moves: it reads rows of ``size`` elements of x.

    ``saving``: the most that it saves without its shift, in picoseconds, given the cost.
    """

    x: ir.Value
    size: int
    saving: Callable[[int], int]


def with_new_biases(
    view: ModelInfo,
    shifted: Shifted,
    found: Sequence[ReachedLayer],
    readers: Sequence[Absorption],
    addition: Callable[[Work], int],
) -> list[Absorption] | Refusal:
    """Add a bias after readers without one if that costs less than the shift does now.

    Readers whose shift changes no result, such as keys, need none.
    ``addition``: the cost of a new Add, for the tensor to which it is added.
    """
    made: list[Absorption] = []
    without: ir.Node | None = None
    cost, shape = 0, view.shape(shifted.x) or ()
    for item, reader in zip(found, readers, strict=True):
        node = item.reader.node
        if reader.biases or _is_ignored(view, node, item.absorbs):
            made.append(reader)
            continue
        place = _behind(view, node, item.absorbs, reader.outer)
        if place is None or reader.start is not None:
            return _no_bias(node, "has no bias input for beta, and none can be added")
        without = without or node
        rows = elements(shape) // max(shifted.size, 1)
        size = reader.outer.size
        added = work_beside(view.shape(node.outputs[0]), size, shape, rows * size)
        cost += addition(added)
        made.append(replace(reader, bias=place))
    if without is None:
        return made
    saving = shifted.saving(cost)
    if saving > cost:
        return made
    spent, saved = (f"{picoseconds / 1e6:.4g} µs" for picoseconds in (cost, saving))
    sentence = f"an Add would cost {spent}, and the norm saves at most {saved} without beta"
    return _no_bias(without, f"has no bias input for beta: {sentence}")


def _is_ignored(view: ModelInfo, node: ir.Node, absorbs: AbsorbingLayer) -> bool:
    """Whether nothing sees W s, which experts add to no channel of their output."""
    shifts = len(absorbs.output.digits) == len(absorbs.outer.digits)
    return shifts and IGNORED.of(view)(node.outputs[0], absorbs.output)


def _behind(
    view: ModelInfo, node: ir.Node, absorbs: AbsorbingLayer, outer: Channels
) -> Place | None:
    """Return the place of a new bias after an operator that cannot have one itself."""
    shape = view.shape(node.outputs[0])
    if absorbs.bias is not None or absorbs.shift_refusal is not None or shape is None:
        return None
    digits = absorbs.output.digits
    if not digits or not all(digit.whole for digit in outer.digits) or not node.outputs[0].name:
        return None
    if any(digit.axis >= len(shape) or shape[digit.axis] != digit.size for digit in digits):
        return None
    return Place("", ref_of(view, Reader(node, len(node.inputs))), absorbs.output, behind=True)


def _no_bias(node: ir.Node, sentence: str) -> Refusal:
    return refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, sentence)
