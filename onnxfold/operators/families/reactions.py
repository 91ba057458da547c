"""The response of a reader to a diagonal and a shift: y = g * x + s along channels of x.

A reader of y, given x instead of y, either

* passes: f(g * x + s, ..) = g * f(x, ..) + s along channels of its output (a carrier);
* absorbs: it is linear in y with a constant weight, W (g * x + s) = (W diag(g)) x + W s;
* reads only the shape; or
* is refused: it needs y itself.

Carriers are the linear operators through which a fiber is followed (a P that commutes digit by
digit is a diagonal that commutes), if the order within a digit stays.

Source: FlashNorm (Graef et al., 2024), section 1: W* = diag(g) W, c* = c + s W.
"""

from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.operators import facets
from onnxfold.operators.families.absorb import AbsorbingLayer, absorbing_layers
from onnxfold.operators.families.linear import Linear, without_map
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.operators.families.rules import (
    digit_behind,
    elements_of,
    refuse_opaque,
    transfer_of,
)
from onnxfold.operators.families.transfer import Carried, refuse
from onnxfold.operators.row import Elements
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Passes:
    """The outputs that carry the diagonal, and why a shift cannot pass as well (None if it can).

    ``jointly`` are all inputs that must carry the same diagonal and shift.
    """

    outputs: tuple[tuple[int, Channels], ...]
    jointly: tuple[int, ...]
    shift_refusal: Refusal | None = None


Reaction = Passes | tuple[AbsorbingLayer, ...] | Refusal
"""A tuple: the linear layers of one reader that take the diagonal; none if it reads the shape."""


def react(view: ModelInfo, node: ir.Node, index: int, channels: Channels) -> Reaction:
    """Return the response of ``node`` when its input ``index`` is x instead of g * x + s."""
    row = row_of(node)
    if row.layer is not None:
        return absorbing_layers(view, node, index, channels)
    if not facets.reads_elements(row):
        return ()
    data = facets.data_inputs(row, len(node.inputs))
    if index in data and facets.passes_scale(row):
        return _carry(view, node, index, channels, (index,) if row.alone else data)
    return refuse_opaque(node) or _must_see(node)


def _must_see(node: ir.Node) -> Refusal:
    return refuse(RefusalCode.EXACT_READER, node, "needs the values with gamma and beta")


def adds_bias(node: ir.Node, index: int) -> bool:
    """Whether ``node`` first adds its only other input to input ``index``.

    An upstream linear layer may leave its bias to such a node: a sum, or the activations of
    com.microsoft that add a bias first.
    """
    whole = len(node.inputs) == 2 and None not in node.inputs
    return whole and index in row_of(node).adds_first


def _carry(
    view: ModelInfo, node: ir.Node, index: int, channels: Channels, jointly: tuple[int, ...]
) -> Reaction:
    if not channels.digits:
        return refuse(RefusalCode.UNKNOWN_SHAPE, node, "has channels of unknown place")
    elements, why = elements_of(view, node)
    if elements > Elements.LINEAR:
        return refuse(RefusalCode.EXACT_READER, node, why)
    outputs: list[tuple[int, Channels]] = []
    for position, output in enumerate(node.outputs):
        moved = channels.mapped(partial(_diagonal_behind, view, node, index, position))
        if moved is None:
            if position == 0 or output.uses() or output.is_graph_output():
                return _why_broken(view, node, index, channels)
            continue
        outputs.append((position, moved))
    shift = None
    if not facets.passes_shift(elements):
        shift = refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, why)
    return Passes(tuple(outputs), jointly, shift)


def _why_broken(view: ModelInfo, node: ir.Node, index: int, channels: Channels) -> Refusal:
    """Return the refusal by the operator's law for the digits, if it has one."""
    transfer = transfer_of(node)
    if isinstance(transfer, Linear) and map_of(view, node) is None:
        return without_map(node)
    if transfer is not None:
        for digit in channels.digits:
            for output, outer in transfer.forward(view, node, index, Fiber((digit,))) or ():
                confirmed = transfer.backward(view, node, output, outer)
                if isinstance(confirmed, Refusal):
                    return confirmed
    return refuse(RefusalCode.FIBER_BROKEN, node, f"mixes or splits the channels {channels}")


def _diagonal_behind(
    view: ModelInfo, node: ir.Node, index: int, position: int, digit: Fiber
) -> Fiber | None:
    """Return the place of one digit's factors in an output, or None.

    A product passes them on for any other factor, while P would have to know it: (g * x) * h = g *
    (x * h).
    """
    if index not in facets.numerators(row_of(node)):
        return digit_behind(view, node, index, position, digit)
    known = map_of(view, node)
    if not isinstance(known, IndexMap):
        return None
    return known.image(digit, known.operand(index), known.output)


def before_layout(
    view: ModelInfo, value: ir.Value, channels: Channels, *, rows: bool = False
) -> tuple[ir.Value, Channels] | None:
    """Return the input of the layout that computes a value, and the channels there.

    Only operators with one data input that move elements are followed, which may come before a
    weight; with ``rows``, also what picks some rows of a stored constant: the weights of experts.
    """
    node = value.producer()
    transfer, source = (None, None) if node is None else (transfer_of(node), node.inputs[:1])
    if node is None or transfer is None or not source or source[0] is None:
        return None
    picks = rows and facets.is_embedding(row_of(node)) and view.tensor(source[0]) is not None
    if value is not node.outputs[0] or not (picks or facets.stands_before_a_weight(row_of(node))):
        return None
    if elements_of(view, node)[0] > (Elements.COPIES if picks else Elements.PERMUTES):
        return None

    def back(digit: Fiber) -> Fiber | None:
        found = transfer.backward(view, node, 0, digit)
        return found.inputs[0][1] if isinstance(found, Carried) else None

    moved = channels.mapped(back)
    return None if moved is None else (source[0], moved)


def behind_layout(
    view: ModelInfo, reader: Reader, channels: Channels
) -> tuple[ir.Value, Channels] | None:
    """Return the output of a layout that reads a value, and the channels there."""
    node, index = reader.node, reader.index
    layout = facets.stands_before_a_weight(row_of(node)) and index == 0
    if not layout or elements_of(view, node)[0] > Elements.PERMUTES:
        return None
    moved = channels.mapped(partial(digit_behind, view, node, index, 0))
    return None if moved is None else (node.outputs[0], moved)
