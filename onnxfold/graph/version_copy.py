"""Copies of working copies: what a pass edits, while the version that it decided on stays.

onnx-ir clones models too, but takes longer, and does not tell which value has become which.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from onnxfold.graph.traversal import all_graphs, attributes

_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class Copy:
    """A copy of a model; ``values`` and ``nodes`` lead from the model to it.

    They share what nothing changes in place: tensors, types, plain attributes, and the shapes of
    results, which are frozen.  So no change of the one can be seen in the other.
    """

    def __init__(self, model: ir.Model):
        self.values = {value: _value(value) for g in all_graphs(model) for value in _values(g)}
        self.nodes: dict[ir.Node, ir.Node] = {}
        self.model = ir.Model(
            self._graph(model.graph),
            ir_version=model.ir_version,
            producer_name=model.producer_name,
            producer_version=model.producer_version,
            domain=model.domain,
            model_version=model.model_version,
            doc_string=model.doc_string,
            functions=[function.clone() for function in model.functions.values()],
            metadata_props=dict(model.metadata_props),
            device_configurations=model.device_configurations,
        )

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        known = self.values
        copy = ir.Graph(
            [known[value] for value in graph.inputs],
            [known[value] for value in graph.outputs],
            nodes=[self._node(node) for node in graph],
            initializers=[known[value] for value in graph.initializers.values()],
            doc_string=graph.doc_string,
            opset_imports=dict(graph.opset_imports),
            name=graph.name,
            metadata_props=dict(graph.metadata_props),
        )
        _note(graph, copy)
        return copy

    def _node(self, node: ir.Node) -> ir.Node:
        known = self.values
        copy = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else known[value] for value in node.inputs],
            [self._attribute(a) if a.type in _BODIES else a for a in attributes(node)],
            overload=node.overload,
            outputs=[known[value] for value in node.outputs],
            version=node.version,
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
            device_configurations=tuple(map(self._placed, node.device_configurations)),
        )
        _note(node, copy)
        self.nodes[node] = copy
        return copy

    def _attribute(self, attribute: ir.Attr) -> ir.Attr:
        if attribute.is_ref():
            return attribute
        if attribute.type == ir.AttributeType.GRAPH:
            body: Any = self._graph(attribute.as_graph())
        else:
            body = [self._graph(graph) for graph in attribute.as_graphs()]
        return ir.Attr(attribute.name, attribute.type, body, doc_string=attribute.doc_string)

    def _placed(self, placing: ir.NodeDeviceConfiguration) -> ir.NodeDeviceConfiguration:
        """Return on which devices the parts of a copied node's values are."""
        known = self.values
        specs = [
            spec if spec.value is None else replace(spec, value=known[spec.value])
            for spec in placing.sharding_specs
        ]
        return replace(placing, sharding_specs=tuple(specs))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value of a graph, once; those without a name too."""
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from node.outputs


def _value(value: ir.Value) -> ir.Value:
    copy = ir.Value(
        name=value.name,
        type=value.type,
        shape=_shape(value),
        doc_string=value.doc_string,
        const_value=value.const_value,
        metadata_props=dict(value.metadata_props),
    )
    _note(value, copy)
    return copy


def _shape(value: ir.Value) -> ir.Shape | None:
    shape = value.shape
    if shape is None or value.producer() is None:
        return None if shape is None else shape.copy()
    shape.freeze()
    return shape


def _note(of: ir.Graph | ir.Node | ir.Value, copy: ir.Graph | ir.Node | ir.Value) -> None:
    """Note at a copy what is noted at its original, in memory alone."""
    if of.meta:
        copy.meta.update(of.meta)
