"""States of loops that every step hands on: all of them are the value that the loop begins with.

A model may have such weights as states, or read them from outside its loops.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator

# Of the first state, among the inputs of the node and of its body; among the outputs of the body.
_FIRST = {"Loop": (2, 1), "Scan": (0, 0)}
_SCAN_WITHOUT_BATCHES = 9  # opset: the older Scan has another first input
_Places = frozenset[int]


class ConstantStates:
    """The states of one model that stay as they are, and what loops have without them."""

    def __init__(self, view: ModelInfo):
        self._same: dict[ir.Value, ir.Value] = {}
        self._gone: dict[ir.Node | ir.Graph, tuple[_Places, _Places]] = {}  # inputs, outputs
        for node in view.nodes():
            old = operator(node) == "Scan" and view.opset < _SCAN_WITHOUT_BATCHES
            if operator(node) in _FIRST and not old:
                self._look_at(node, node.attributes["body"].as_graph())

    def _look_at(self, loop: ir.Node, body: ir.Graph) -> None:
        first, after = _FIRST[loop.op_type]
        scanned = loop.attributes.get_int("num_scan_inputs", 0)
        found: list[int] = []
        for state in range(len(loop.inputs) - first - scanned):
            inside, begin = body.inputs[first + state], loop.inputs[first + state]
            if begin is not None and _is_handed_on(inside, body.outputs[after + state]):
                self._same[inside] = self._same[loop.outputs[state]] = begin
                found.append(state)
        if found:
            inputs = frozenset(first + state for state in found)
            self._gone[loop] = (inputs, frozenset(found))
            self._gone[body] = (inputs, frozenset(after + state for state in found))

    def begins(self, value: ir.Value | None) -> ir.Value | None:
        """Return the value that a state is, from outside all loops, or the value itself."""
        while value is not None and value in self._same:
            value = self._same[value]
        return value

    def inputs(self, where: ir.Node | ir.Graph) -> list[ir.Value | None]:
        """Return the inputs of a node or body without such states."""
        gone = self._gone[where][0] if where in self._gone else ()
        return [value for index, value in enumerate(where.inputs) if index not in gone]

    def place(self, result: ir.Value, node: ir.Node) -> int:
        """Return the index of a result of a node among those that are not such states."""
        index = result.index() or 0
        gone = self._gone[node][1] if node in self._gone else ()
        return index - sum(state < index for state in gone)

    def outputs(self, body: ir.Graph) -> list[ir.Value]:
        """Return the outputs of a body without such states."""
        gone = self._gone[body][1] if body in self._gone else ()
        return [value for index, value in enumerate(body.outputs) if index not in gone]


def _is_handed_on(before: ir.Value, after: ir.Value) -> bool:
    """Whether the next value of a state is its value, maybe through Identity."""
    value: ir.Value | None = after
    while value is not None and value is not before:
        node = value.producer()
        value = node.inputs[0] if node is not None and operator(node) == "Identity" else None
    return value is before
