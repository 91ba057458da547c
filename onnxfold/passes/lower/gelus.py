"""The order of products in a spelled Gelu that ONNX Runtime can fuse.

dynamo exports x * (0.5 * (1 + erf(x / sqrt(2)))), which a session runs as five operators; it fuses
(0.5 * x) * (1 + erf(x / sqrt(2))) into one, alone or with the bias before it. Halving a float is
exact, so both yield the same number, unless half of x is not a normal number.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.edit import Editor, Lowered
from onnxfold.graph.operands import computed_by, is_read_once, producer_of


@dataclass(frozen=True, slots=True)
class LateHalf:
    """A Gelu that halves 1 + erf instead of x: its last product, and the factors."""

    product: ir.Node
    halving: ir.Node
    x: ir.Value
    half: ir.Value
    total: ir.Value  # 1 + erf(x / sqrt(2))

    def lower(self) -> Lowered:
        """Return the nodes that halve x first."""
        halving = ir.node("Mul", [self.x, self.half], name=self.halving.name)
        halved, old = halving.outputs[0], self.halving.outputs[0]
        halved.name, halved.type = old.name, old.type
        product = ir.node("Mul", [halved, self.total], name=self.product.name)
        return Lowered((halving, product), ((self.product.outputs[0], product.outputs[0]),))


def late_halves(view: ModelInfo) -> tuple[LateHalf, ...]:
    """Return the Gelus that a session would run operator by operator."""
    products = (node for node in view.nodes() if operator(node) == "Mul")
    found = (_found(view, node, place) for node in products for place in (0, 1))
    return tuple(each for each in found if each is not None)


def halve_first(edit: Editor, gelus: Iterable[LateHalf]) -> None:
    """Make each Gelu halve x instead of 1 + erf."""
    for gelu in gelus:
        edit.stand_in(gelu.lower(), gelu.product, (gelu.halving, gelu.product))


def _found(view: ModelInfo, product: ir.Node, place: int) -> LateHalf | None:
    """Return the Gelu whose last product has the halved sum as an operand, or None."""
    x, halved = product.inputs[1 - place], product.inputs[place]
    halving = computed_by(halved, "Mul")
    if x is None or halved is None or halving is None or halving.graph is not product.graph:
        return None
    half, total = _with_number(view, halving, 0.5)
    addition = computed_by(total, "Add")
    erf = None if addition is None else computed_by(_with_number(view, addition, 1.0)[1], "Erf")
    scaling = None if erf is None else producer_of(erf.inputs[0])
    if half is None or total is None or scaling is None or x not in scaling.inputs:
        return None
    return LateHalf(product, halving, x, half, total) if is_read_once(halved) else None


def _with_number(
    view: ModelInfo, node: ir.Node, number: float
) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the constant operand of a node, and the other one; (None, None) without a match."""
    first, second = node.inputs
    if view.scalar(first) == number:
        return first, second
    return (second, first) if view.scalar(second) == number else (None, None)
