"""Neighbors of a value or a node, where there may be none, or must be one."""

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.constants import constant_tensor
from onnxfold.graph.model_info import ModelInfo, node_label, operator


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None if it is omitted."""
    return node.inputs[index] if index < len(node.inputs) else None


def operands(node: ir.Node | None) -> list[ir.Value]:
    """Return the inputs of a node that are not omitted."""
    return [] if node is None else [value for value in node.inputs if value is not None]


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value, or None."""
    return None if value is None else value.producer()


def only_reader(value: ir.Value | None) -> ir.Node | None:
    """Return the only node that needs a value; None if others, a caller or nobody does."""
    if value is None or value.is_graph_output():
        return None
    readers = {use.node for use in value.uses()}
    return readers.pop() if len(readers) == 1 else None


def is_read_once(value: ir.Value) -> bool:
    """Whether a value is needed by only one input of one node."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def computed_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes a value if it is that operator of ONNX, otherwise None."""
    node = producer_of(value)
    return node if node is not None and operator(node) == op_type else None


def known_producer(value: ir.Value) -> ir.Node:
    """Return the node that computes a value; raises InvariantError if there is none."""
    node = value.producer()
    if node is None:
        raise InvariantError(f"no node computes '{value.name}'")
    return node


def known_operand(node: ir.Node, index: int) -> ir.Value:
    """Return an input of a node; raises InvariantError if it is omitted."""
    value = operand(node, index)
    if value is None:
        raise InvariantError(f"node '{node_label(node)}' has no input {index}")
    return value


def known_tensor(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of a constant; raises InvariantError for other values."""
    tensor = constant_tensor(value)
    if tensor is None:
        raise InvariantError(f"'{value.name}' is not a constant")
    return tensor


def weight_operand(view: ModelInfo, node: ir.Node, op_type: str) -> int | None:
    """Return the index of the one constant input of a product or sum if it is a stored weight."""
    if operator(node) != op_type or len(node.inputs) != 2:
        return None
    constant = [view.tensor(value) is not None for value in node.inputs]
    return constant.index(True) if sum(constant) == 1 else None
