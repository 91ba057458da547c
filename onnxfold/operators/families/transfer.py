"""The interface of a family, and helpers that all families share.

P is the centering along a fiber: P x = x - mean of x over the fiber. For one output and fiber the
backward transfer returns

* ``Carried``: the output is linear in the carried inputs together, and centering them centers the
  output: f(P x1, P x2, ..., rest) = P f(x1, x2, ..., rest). A shift of a carried input that is
  constant along its fiber is then a shift of the output along its own;
* ``ZeroMean``: the output has mean 0 along the fiber for any inputs;
* a ``Refusal``: the result is unknown.

The forward transfer names for an input and fiber the outputs that may carry it; they count only if
the backward transfer confirms them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label, operator
from onnxfold.graph.channels import Channels
from onnxfold.graph.model_info import Fact
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Carried:
    """The inputs (index, fiber in the input's coordinates) whose centering centers the output.

    ``alone``: the node's other outputs do not move with it.
    """

    inputs: tuple[tuple[int, Fiber], ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class ZeroMean:
    """The output has mean 0 along the fiber."""


Backward = Carried | ZeroMean | Refusal
Forward = tuple[tuple[int, Fiber], ...] | None


IGNORED: Fact[Callable[[ir.Value, Channels], bool]] = Fact("shifts that nothing sees")
"""Whether no result of the model depends on a shift of a value that varies along channels alone.

Keys have one: q (k + c)' = q k' + q c', the same for every key, and Softmax over keys ignores that.
"""


class Transfer(Protocol):
    """How a family passes fibers on: from an output back to the inputs, and forward."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        """Return how the output, centered along ``fiber``, depends on the inputs."""

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        """Name the outputs reached by a shift of input ``index``; () for none, None if unknown."""


def refuse(code: RefusalCode, node: ir.Node, sentence: str) -> Refusal:
    """Return a refusal that names the operator and the node at fault."""
    label = node_label(node)
    return Refusal(code, f"{operator(node)} '{label}' {sentence}", (label,))


def refuse_value(code: RefusalCode, value: ir.Value, sentence: str) -> Refusal:
    """Return a refusal that names the value at fault."""
    name = value.name or ""
    return Refusal(code, f"'{name}' {sentence}", (name,))


def unknown_shape(node: ir.Node) -> Refusal:
    """Return the refusal for a node with unknown ranks or sizes nearby."""
    return refuse(RefusalCode.UNKNOWN_SHAPE, node, "has an unknown shape; run shape inference")


def broken(node: ir.Node, fiber: Fiber) -> Refusal:
    """Return the refusal for a node that mixes or cuts the fiber."""
    return refuse(
        RefusalCode.FIBER_BROKEN, node, f"mixes or splits the normalized elements ({fiber})"
    )
