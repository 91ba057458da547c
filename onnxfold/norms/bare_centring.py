"""x - mean(x) that no norm contains: dueling heads, and what other lengths than a norm's scale.

Q(s, a) = V(s) + A(s, a) - mean of A(s, a) over a
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber
from onnxfold.graph.edit import Editor


@dataclass(frozen=True, slots=True, eq=False)
class BareCentring:
    """y = x - mean(x) along a fiber of ``size`` elements; ``nodes`` compute it, the last one y."""

    name: str
    input: ir.Value
    output: ir.Value
    fiber: Fiber
    size: int
    nodes: tuple[ir.Node, ...]

    def within(self, edit: Editor) -> "BareCentring":
        """Return the same centring in the model that is edited."""
        nodes = tuple(edit.node(node) for node in self.nodes)
        values = edit.value(self.input), edit.value(self.output)
        return BareCentring(self.name, *values, self.fiber, self.size, nodes)
