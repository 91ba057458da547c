"""x - mean(x) that no norm contains: dueling heads, and what other lengths than a norm's scale.

Q(s, a) = V(s) + A(s, a) - mean of A(s, a) over a
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label
from onnxfold.graph.edit import Editor
from onnxfold.norms.recognition import find_norms
from onnxfold.norms.subtracted_mean import subtraction


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


def find_centrings(info: ModelInfo) -> tuple[BareCentring, ...]:
    """Return every subtraction of a mean from an activation that no norm contains, in order."""
    taken = {node for site in find_norms(info) for node in site.nodes}
    found = []
    for node in info.nodes():
        if node in taken or not node.outputs or info.is_dead(node):
            continue
        nodes, fiber = subtraction(info, node) or ((), None)
        x = node.inputs[0] if nodes else None
        if x is None or fiber is None or info.tensor(x) is not None:
            continue
        name = node_label(node)
        found.append(BareCentring(name, x, node.outputs[0], fiber, fiber.size, nodes))
    return tuple(found)
