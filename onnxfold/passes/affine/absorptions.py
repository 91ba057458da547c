"""Linear layers that absorb r and s of their input: what changes for each, and the change."""

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.array_types import Float64
from onnxfold.graph.float_types import HALVES
from onnxfold.operators.families.weight_roots import root_of
from onnxfold.passes.affine.affine_walk import ReachedLayer
from onnxfold.passes.affine.biases import bias_of, parts_of
from onnxfold.passes.affine.plan import Absorption
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.places import place_of, ref_of
from onnxfold.refusal import Refusal
from onnxfold.weights.dequantised import holder_of, quantised_weight
from onnxfold.weights.edited import Product
from onnxfold.weights.edits import Scale, Shift
from onnxfold.weights.half_weights import refuse_few_bits
from onnxfold.weights.narrow import refuse_narrow


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
    whole = all(digit.whole for digit in root.outer.digits)
    disjoint = not set(root.outer.axes) & set(root.channels.axes) or absorbs.bias is not None
    bias = bias_of(view, node, absorbs, root) if whole and disjoint else None
    made = Absorption(
        ref_of(view, item.reader), weight, root.outer, bias, absorbs.factor, start=item.start
    )
    if bias is not None or not (whole and disjoint) or absorbs.bias is not None:
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
