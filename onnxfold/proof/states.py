"""What is the same in two models by its form: nodes of one meaning, inputs, states of loops.

A state that every step of a loop hands on is the value that the loop begins with: a model may have
such weights as states, or read them from outside its loops.
"""

from collections.abc import Collection, Iterator
from itertools import zip_longest

import onnx
import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.edit import set_input
from onnxfold.graph.equality import same_attributes, same_default
from onnxfold.graph.traversal import all_nodes
from onnxfold.shapes import infer
from onnxfold.shapes.inference import list_less

# Of the first state, among the inputs of the node and of its body; among the outputs of the body.
_FIRST = {"Loop": (2, 1), "Scan": (0, 0)}
_SCAN_WITHOUT_BATCHES = 9  # opset: the older Scan has another first input
_Places = frozenset[int]


class ConstantStates:
    """The states of one model that stay as they are, and what loops have without them."""

    def __init__(self, model: ir.Model):
        self._same: dict[ir.Value, ir.Value] = {}
        self._gone: dict[ir.Node | ir.Graph, tuple[_Places, _Places]] = {}  # inputs, outputs
        batches = model.graph.opset_imports.get("", 1) < _SCAN_WITHOUT_BATCHES
        for node in all_nodes(model):
            old = operator(node) == "Scan" and batches
            if operator(node) in _FIRST and not old:
                self._look_at(node, node.attributes["body"].as_graph())

    def _look_at(self, loop: ir.Node, body: ir.Graph) -> None:
        first, after = _FIRST[loop.op_type]
        scanned = loop.attributes.get_int("num_scan_inputs", 0)
        found: list[int] = []
        for state in range(len(loop.inputs) - first - scanned):
            inside, begin = body.inputs[first + state], loop.inputs[first + state]
            if begin is not None and _comes_of(body.outputs[after + state], (inside, begin)):
                self._same[inside] = self._same[loop.outputs[state]] = begin
                found.append(state)
        if found:
            inputs = frozenset(first + state for state in found)
            self._gone[loop] = (inputs, frozenset(found))
            self._gone[body] = (inputs, frozenset(after + state for state in found))

    def read_first(self) -> None:
        """Let all that reads such a state read the value that it begins with, in place."""
        for state, begin in self._same.items():
            for use in tuple(state.uses()):
                set_input(use.node, use.idx, begin)

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


def _comes_of(value: ir.Value | None, among: Collection[ir.Value]) -> bool:
    """Whether a value is one of these, maybe through Identity."""
    while value is not None and value not in among:
        node = value.producer()
        value = node.inputs[0] if node is not None and operator(node) == "Identity" else None
    return value is not None


def as_given(model: ir.Model, *, inferred: bool = False) -> ModelInfo:
    """Return the facts of a copy of a model to start a proof from, or to end it at.

    Types and shapes are inferred unless they are known, and readers of states that every step of a
    loop hands on read what the loop begins with: of constants, constants are computed.
    """
    clone = model.clone()
    listed = list_less(clone)
    ConstantStates(clone).read_first()
    return ModelInfo(clone) if inferred and not listed else infer(clone)


class Twins:
    """Nodes of two models that compute the same of equal operands."""

    def __init__(self, before: ModelInfo, after: ModelInfo):
        self.old, self.new = ConstantStates(before.model), ConstantStates(after.model)
        self._before, self._after = before, after
        self._same_bodies: dict[tuple[ir.OperatorIdentifier, ir.OperatorIdentifier], bool] = {}

    def are(self, u: ir.Value, v: ir.Value) -> bool:
        """Whether two values are the same result of nodes of one meaning."""
        twin, node = u.producer(), v.producer()
        if twin is None or node is None or self.old.place(u, twin) != self.new.place(v, node):
            return False
        called = twin.op_identifier(), node.op_identifier()
        same = called[0][:2] == called[1][:2] and same_attributes(twin, node)
        return same and self._have_same_body(*called)

    def operands(
        self, twin: ir.Node, node: ir.Node
    ) -> Iterator[tuple[ir.Value | None, ir.Value | None]]:
        """Yield the operands of both, place by place; None is missing."""
        return zip_longest(self.old.inputs(twin), self.new.inputs(node))

    def _have_same_body(self, old: ir.OperatorIdentifier, new: ir.OperatorIdentifier) -> bool:
        """Whether calls have one meaning: operators of one name, or functions of one body."""
        if (old, new) not in self._same_bodies:
            called = self._before.model.functions.get(old), self._after.model.functions.get(new)
            texts = [None if body is None else _text(body) for body in called]
            self._same_bodies[old, new] = texts[0] == texts[1]
        return self._same_bodies[old, new]

    def other_inputs(self) -> Iterator[str]:
        """Say which inputs differ: of the model, with their types and defaults, and of bodies."""
        both = zip(self._before.graphs, self._after.graphs, strict=False)
        for number, (old, new) in enumerate(both):
            first, second = self.old.inputs(old), self.new.inputs(new)
            if [value and value.name for value in first] != [v and v.name for v in second]:
                what = f"the body '{new.name}'" if number else "the model"
                yield f"the inputs of {what} differ from before"
        for a, b in zip(
            self._before.model.graph.inputs, self._after.model.graph.inputs, strict=False
        ):
            if None not in (a.dtype, b.dtype) and a.dtype is not b.dtype:
                yield f"input '{b.name}' has another type than before"
            if not same_default(a, b):
                yield f"input '{b.name}' has another default than before"


def _text(body: ir.Function) -> onnx.FunctionProto:
    """Return a function without the name that tells it from others of the same name."""
    proto = ir.to_proto(body)
    proto.overload = ""
    return proto
