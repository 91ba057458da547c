"""Sequences of tensors, in which TorchScript keeps the steps of a recurrent layer.

Unbind is written SplitToSequence with keepdims 0 and split 1. By the standard keepdims would be
ignored if split is given; ONNX Runtime removes the axis, as the exporter intends and the readers of
the elements need, so this is the reading here.
"""

from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.graph.constants import constant_tensor
from onnxfold.graph.operands import computed_by, operands
from onnxfold.graph.traversal import all_nodes, bodies, reached


def is_unbind(node: ir.Node) -> bool:
    """Whether a node splits a tensor along an axis and removes the axis."""
    if node.op_type != "SplitToSequence" or node.domain:
        return False
    if node.attributes.get_int("keepdims", 1) != 0:
        return False
    split = node.inputs[1] if len(node.inputs) > 1 else None
    if split is None:
        return True
    tensor = constant_tensor(split)
    return tensor is not None and len(tensor.shape) == 0 and int(tensor.numpy()) == 1


def inserted_elements(sequence: ir.Value | None) -> list[ir.Value]:
    """Return values such that every element of a sequence is one of them; [] if unknown.

    For a Loop state that starts empty and grows by one element per step, that is the element.
    """
    if (loop := computed_by(sequence, "Loop")) is None:
        return operands(computed_by(sequence, "SequenceConstruct"))
    for _, _, body in bodies(loop):
        states = zip(loop.outputs, loop.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False)
        for result, start, before, after in states:
            if result is sequence:
                return _grown(start, before, after)
    return []


def _grown(start: ir.Value | None, before: ir.Value, after: ir.Value) -> list[ir.Value]:
    insert = computed_by(after, "SequenceInsert")
    grows = computed_by(start, "SequenceEmpty") is not None and operands(insert)[:1] == [before]
    return operands(insert)[1:2] if grows else []


def behind_unbind(model: ir.Model) -> set[ir.Value]:
    """Return all values computed from elements of an unbound tensor."""
    holders = _unbinding(model)
    nodes = (n for n in all_nodes(model) if is_unbind(n) or n.op_identifier() in holders)
    starts = [value for node in nodes for value in node.outputs]
    owners = {body: node for node in all_nodes(model) for body in _graphs(node)} if starts else {}
    first = (value for start in starts for value in _one_step(start, owners))
    return set(reached(first, lambda value: _one_step(value, owners)))


def _unbinding(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the functions that unbind a tensor, or call one that does (dynamo's aten_unbind)."""
    found: set[ir.OperatorIdentifier] = set()
    while more := {
        key
        for key, body in model.functions.items()
        if key not in found
        and any(is_unbind(n) or n.op_identifier() in found for n in body.all_nodes())
    }:
        found |= more
    return found


def _graphs(node: ir.Node) -> list[ir.Graph]:
    return [graph for _, _, graph in bodies(node)]


def _one_step(value: ir.Value, owners: dict[ir.Graph, ir.Node]) -> Iterator[ir.Value]:
    for use in value.uses():
        yield from use.node.outputs
        for graph in _graphs(use.node):
            yield from graph.inputs
    for graph, owner in owners.items() if value.is_graph_output() else ():
        if value in graph.outputs:
            yield from owner.outputs
            yield from graph.inputs
