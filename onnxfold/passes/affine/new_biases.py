"""Additions after linear layers without a bias, where they cost less than what they replace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.operators.families.absorb import AbsorbingLayer
from onnxfold.operators.families.transfer import refuse
from onnxfold.passes.affine.affine_walk import ReachedLayer
from onnxfold.passes.affine.plan import Absorption
from onnxfold.passes.places import Place, ref_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.targets.costs import Work, elements, work_beside


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

    ``addition``: the cost of a new Add, for the tensor to which it is added.
    """
    made: list[Absorption] = []
    without: ir.Node | None = None
    cost, shape = 0, view.shape(shifted.x) or ()
    for item, reader in zip(found, readers, strict=True):
        node = item.reader.node
        if reader.biases:
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
