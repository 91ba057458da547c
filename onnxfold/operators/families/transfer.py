"""What a family says about a node, and the helpers that all families share.

P is the centring along a fiber: (P x) = x - mean of x over the fiber.  For one output and
fiber the backward transfer answers with

* ``Carried``: the output is linear in the carried inputs together, and centring them centres the
  output: f(P x1, P x2, ..., rest) = P f(x1, x2, ..., rest).  A shift of a carried input by what is
  constant along its fiber is then a shift of the output along its own;
* ``ZeroMean``: the output has mean 0 along the fiber whatever the inputs are;
* a ``Refusal``: nothing is known.

The forward transfer names for an input and fiber the outputs that may carry it; what it names
counts only when the backward transfer confirms it.
"""

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label, operator
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Carried:
    """The inputs (index, fiber in the input's coordinates) whose centring centres the output.

    ``alone``: the node's other outputs do not move with it.
    """

    inputs: tuple[tuple[int, Fiber], ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class ZeroMean:
    """The output has mean 0 along the fiber."""


Backward = Carried | ZeroMean | Refusal
Forward = tuple[tuple[int, Fiber], ...] | None


class Transfer(Protocol):
    """How a family of operators hands fibers on: from an output back to the inputs, and forward."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        """Say how the output, centred along ``fiber``, follows from the inputs."""

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        """Name the outputs a shift of input ``index`` reaches; () none, None cannot be told."""


def refuse(code: RefusalCode, node: ir.Node, sentence: str) -> Refusal:
    """Return a refusal that names the operator and the node at fault."""
    label = node_label(node)
    return Refusal(code, f"{operator(node)} '{label}' {sentence}", (label,))


def unknown_shape(node: ir.Node) -> Refusal:
    """Return the refusal for a node around which ranks or sizes are unknown."""
    return refuse(RefusalCode.UNKNOWN_SHAPE, node, "has an unknown shape; run shape inference")


def broken(node: ir.Node, fiber: Fiber) -> Refusal:
    """Return the refusal for a node that mixes or cuts the fiber."""
    return refuse(
        RefusalCode.FIBER_BROKEN, node, f"mixes or cuts the normalised elements ({fiber})"
    )
