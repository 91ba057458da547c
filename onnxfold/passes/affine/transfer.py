"""What a reader does with a diagonal and a shift: y = g * x + s along channels of x.

A reader of y, given x instead of y, either

* passes: f(g * x + s, ..) = g * f(x, ..) + s along channels of its output (a carrier);
* absorbs: it is linear in y with a constant weight, W (g * x + s) = (W diag(g)) x + W s;
* does not look at the elements; or
* is refused: it must see y.

Carriers are the layout operators of the zero-mean table (a P that commutes digit by digit is a
diagonal that commutes), less those that may change the order within a digit.

Source: FlashNorm (Graef et al., 2024), section 1: W* = diag(g) W, c* = c + s W.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.operators.table import law_of, refuse_opaque
from onnxfold.operators.transfer import Carried, refuse
from onnxfold.passes.affine.absorb import LINEAR, Absorbs
from onnxfold.passes.scales.homogeneous import FLOATS
from onnxfold.refusal import Refusal, RefusalCode

__all__ = ["Absorbs", "Passes", "Reaction", "Unseen", "adds_bias", "pulled", "react"]


@dataclass(frozen=True, slots=True)
class Passes:
    """The outputs that carry the diagonal, and why a shift cannot pass as well (None: it can).

    ``jointly`` are all inputs that must carry the same diagonal and shift.
    """

    outputs: tuple[tuple[int, Channels], ...]
    jointly: tuple[int, ...]
    shift_refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Unseen:
    """The reader looks at the shape alone."""


Reaction = Passes | Absorbs | Unseen | Refusal

_PASS_BOTH = frozenset(
    (
        "Cast CastLike Concat Dropout Expand Flatten Gather GlobalAveragePool Identity ReduceMean "
        "Reshape Slice Split Squeeze Tile Transpose Unsqueeze"
    ).split()
)
_PASS_DIAGONAL = {
    "AveragePool": "may average over zeros at its borders",
    "Div": "divides by a factor, which the shift would have to know",
    "Mul": "multiplies by a factor, which the shift would have to know",
    "Neg": "changes the sign, which the shift would have to follow",
    "Pad": "pads with zeros, which have no shift",
    "ReduceSum": "adds up several positions, and with them the shift",
}


def react(view: ModelInfo, node: ir.Node, index: int, channels: Channels) -> Reaction:
    """Return what ``node`` does when its input ``index`` is x instead of g * x + s."""
    linear = LINEAR.get((node.domain, node.op_type))
    if linear is not None:
        return linear(view, node, index, channels)
    if node.domain == "" and node.op_type in ("Shape", "Size"):
        return Unseen()
    if node.domain == "" and (node.op_type in _PASS_BOTH or node.op_type in _PASS_DIAGONAL):
        return _carry(view, node, index, channels)
    return refuse_opaque(node) or refuse(
        RefusalCode.EXACT_READER, node, "must see the values with gamma and beta"
    )


def adds_bias(node: ir.Node, index: int) -> bool:
    """Whether ``node`` adds its one other input to input ``index``, before whatever else it does.

    A linear layer in front may leave its bias there: a sum, or the activations of com.microsoft
    that add a bias first.
    """
    if len(node.inputs) != 2 or None in node.inputs:
        return False
    if node.domain == "com.microsoft" and node.op_type in ("BiasGelu", "FastGelu"):
        return index == 0
    return (node.domain, node.op_type) == ("", "Add")


def _carry(view: ModelInfo, node: ir.Node, index: int, channels: Channels) -> Reaction:
    outputs: list[tuple[int, Channels]] = []
    jointly: tuple[int, ...] = (index,)
    if not channels.digits:
        return refuse(RefusalCode.UNKNOWN_SHAPE, node, "has channels of unknown place")
    if node.op_type in ("CastLike", "Gather", "Expand", "Tile", "Reshape") and index != 0:
        return refuse(RefusalCode.EXACT_READER, node, "must see the values with gamma and beta")
    for position, output in enumerate(node.outputs):
        moved = channels.mapped(partial(_pushed, view, node, index, position))
        if moved is None:
            if position == 0 or output.uses() or output.is_graph_output():
                return refuse(
                    RefusalCode.FIBER_BROKEN, node, f"mixes or cuts the channels {channels}"
                )
            continue
        outputs.append((position, moved))
    if node.op_type == "Concat":
        jointly = tuple(range(len(node.inputs)))
    why = _PASS_DIAGONAL.get(node.op_type)
    shift = None if why is None else refuse(RefusalCode.SHIFT_CANNOT_CROSS, node, why)
    if node.op_type == "Pad" and not _pads(view, node):
        shift = None
    return Passes(tuple(outputs), jointly, shift)


def _pushed(
    view: ModelInfo, node: ir.Node, index: int, position: int, digit: Fiber
) -> Fiber | None:
    """Return where one digit stands in an output, confirmed from the output back."""
    law = law_of(node.domain, node.op_type)
    found = law.family.push(view, node, index, digit) if law is not None else None
    if law is None or found is None or _touches(view, node, digit):
        return None
    for output, outer in found:
        if output != position:
            continue
        confirmed = law.family.pull(view, node, output, outer)
        if isinstance(confirmed, Carried) and (index, digit) in confirmed.inputs:
            return outer
    return None


def _touches(view: ModelInfo, node: ir.Node, digit: Fiber) -> bool:
    """Whether a Slice works on the digit's axis, where it may reverse it."""
    if node.op_type != "Slice":
        return False
    rank, axes = view.rank(node.inputs[0]), view.axes(node, 3)
    if rank is None or axes is None:
        return True
    if not axes:
        starts = node.attributes.get_ints("starts", None)
        length = view.dim(node.inputs[1], 0) if len(node.inputs) > 1 else None
        count = len(starts) if starts is not None else length
        if not isinstance(count, int):
            return True
        axes = tuple(range(count))
    return bool({axis % rank for axis in axes} & set(digit.axes))


def _pads(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Pad may add anything."""
    pads = node.attributes.get_ints("pads", None) if view.opset < 11 else None
    if pads is None:
        pads = view.integers(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is None or any(pads)


def pulled(
    view: ModelInfo, value: ir.Value, channels: Channels
) -> tuple[ir.Value, Channels] | None:
    """Return a layout's input and the channels there, for a value that a layout computes.

    Only operators with one data input that move elements: what a weight may stand behind.
    """
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in _BEHIND:
        return None
    law, source = law_of("", node.op_type), node.inputs[0]
    if law is None or source is None:
        return None
    if node.op_type == "Cast" and not ({source.dtype, value.dtype} <= FLOATS):
        return None

    def back(digit: Fiber) -> Fiber | None:
        found = law.family.pull(view, node, 0, digit)
        return found.inputs[0][1] if isinstance(found, Carried) else None

    moved = channels.mapped(back)
    return None if moved is None else (source, moved)


_BEHIND = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
