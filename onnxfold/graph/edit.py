"""Edits that every rewriting shares: new nodes in the place of old ones, changed constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.traversal import graph_values

__all__ = ["Editor", "Lowered", "add_function", "change_constant", "inherit", "sweep"]


@dataclass(frozen=True, slots=True)
class Lowered:
    """New nodes, in order, and which value each of their results stands in for."""

    nodes: tuple[ir.Node, ...]
    stands_for: tuple[tuple[ir.Value, ir.Value], ...]  # (old, new)
    initializers: tuple[ir.Value, ...] = ()
    functions: tuple[ir.Function, ...] = field(default=())


def add_function(model: ir.Model, body: ir.Function) -> None:
    """Give the model a function, unless it has one of that name that is right for more types.

    The body for a half type converts, hence is right for FLOAT too and has more nodes.
    """
    present = model.functions.get(body.identifier())
    if present is None or len(present) < len(body):
        model.functions[body.identifier()] = body
    model.graph.opset_imports.setdefault(body.domain, 1)


def change_constant(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Let an initializer or Constant node hold another tensor."""
    if value.is_initializer():
        value.const_value = tensor
        return
    node = value.producer()
    if node is None:
        raise InvariantError(f"the plan changes '{value.name}', which nothing holds")
    node.attributes.clear()
    node.attributes.add(ir.AttrTensor("value", tensor))


class Editor:
    """Inserts nodes into one model; remembers which names are taken and what replaced what."""

    def __init__(self, view: ModelInfo):
        self._model = view.model
        self._taken = {value.name for graph in view.graphs for value in graph_values(graph)}
        self._replaced: dict[ir.Value, ir.Value] = {}

    def unused(self, name: str) -> str:
        """Return the name, with a number where it is taken, and take it."""
        candidate, number = name, 2
        while candidate in self._taken:
            candidate, number = f"{name}.{number}", number + 1
        self._taken.add(candidate)
        return candidate

    def new_constant(self, near: ir.Value, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer to the graph that ``near`` is in."""
        node = near.producer()
        graph = node.graph if node is not None else near.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"'{near.name}' is in no graph")
        tensor.name = name = self.unused(name)
        shape = ir.Shape(tensor.shape.numpy())
        kind = ir.TensorType(tensor.dtype)
        value = ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
        graph.register_initializer(value)
        return value

    def insert_behind(self, value: ir.Value, lowered: Lowered) -> None:
        """Insert nodes behind the producer of a value, or first where the value is an input."""
        node = value.producer()
        graph = node.graph if node is not None else value.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"'{value.name}' is in no graph")
        self._prepare(graph, lowered, ())
        if node is not None:
            graph.insert_after(node, lowered.nodes)
        elif len(graph) > 0:
            graph.insert_before(graph[0], lowered.nodes)

    def put_behind(self, value: ir.Value, node: ir.Node) -> None:
        """Insert a node that reads a value first; its result gets the name and all readers."""
        producer, result = value.producer(), node.outputs[0]
        if producer is None or not isinstance(producer.graph, ir.Graph):
            raise InvariantError(f"'{value.name}' is computed in no graph")
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        node.replace_input_with(0, value)
        producer.graph.insert_after(producer, node)
        node.name = f"{producer.name or value.name}.bias"
        inherit(value, result)
        value.name = self.unused(f"{result.name}.product")

    def stand_in(self, lowered: Lowered, before: ir.Node, old: Iterable[ir.Node]) -> None:
        """Insert new nodes before a node; they take over the names of what they stand for.

        Those of the ``old`` nodes that nothing reads any more are removed, with their weights.
        """
        graph = before.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"node '{before.name}' is in no graph")
        self._prepare(graph, lowered, tuple(new for _, new in lowered.stands_for))
        graph.insert_before(before, lowered.nodes)
        for value, new in lowered.stands_for:
            heir = self._replaced.get(new, new)
            producer = heir.producer()
            if producer in lowered.nodes:
                inherit(value, heir)
                _inherit_node(value.producer(), producer)
            value.replace_all_uses_with(heir, replace_graph_outputs=True)
            self._replaced[value] = heir
        sweep(old)

    def _prepare(self, graph: ir.Graph, lowered: Lowered, heirs: tuple[ir.Value, ...]) -> None:
        """Name what is new, read what replaced an operand, register weights and functions."""
        for value in lowered.initializers:
            if value.graph is graph:
                continue  # shared with nodes that are in place
            value.name = self.unused(value.name or "weight")
            if value.const_value is not None:
                value.const_value.name = value.name
            graph.register_initializer(value)
        for node in lowered.nodes:
            for index, operand in enumerate(node.inputs):
                if operand in self._replaced:
                    node.replace_input_with(index, self._replaced[operand])
            for output in node.outputs:
                if output not in heirs:
                    output.name = self.unused(output.name or node.op_type)
        for function in lowered.functions:
            add_function(self._model, function)


def inherit(old: ir.Value, new: ir.Value) -> None:
    """Give a value the name and type of the one that it stands for."""
    new.shape, new.type = old.shape, old.type
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    name, old.name = old.name, f"{old.name}.replaced"
    new.name = name


def _inherit_node(old: ir.Node | None, new: ir.Node | None) -> None:
    """Give the node that computes a result what was noted at the one that did before.

    Of two results of one node, the first prevails.
    """
    if old is not None and new is not None:
        new.doc_string = new.doc_string or old.doc_string
        for key, value in old.metadata_props.items():
            new.metadata_props.setdefault(key, value)


def sweep(nodes: Iterable[ir.Node]) -> None:
    """Remove those of ``nodes`` that nothing reads, and weights that only they read."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        graph = node.graph
        if not isinstance(graph, ir.Graph) or any(map(_is_read, node.outputs)):
            continue
        inputs = [operand for operand in node.inputs if operand is not None]
        graph.remove(node, safe=True)
        for value in inputs:
            producer, home = value.producer(), value.graph
            if _is_read(value):
                continue
            if producer is not None and producer.op_type == "Constant":
                waiting.append(producer)
            elif value.is_initializer() and not value.is_graph_input() and home is not None:
                home.initializers.pop(value.name or "")


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
