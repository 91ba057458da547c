"""What stands before and behind a value or a node: where that may be nothing, or must not."""

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.constants import constant_tensor
from onnxfold.graph.model_info import ModelInfo, node_label, operator


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def operands(node: ir.Node | None) -> list[ir.Value]:
    """Return the inputs of a node that are not left out."""
    return [] if node is None else [value for value in node.inputs if value is not None]


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value, None where none does."""
    return None if value is None else value.producer()


def only_reader(value: ir.Value | None) -> ir.Node | None:
    """Return the one node that needs a value, None where others, a caller or nobody does."""
    if value is None or value.is_graph_output():
        return None
    readers = {use.node for use in value.uses()}
    return readers.pop() if len(readers) == 1 else None


def is_read_once(value: ir.Value) -> bool:
    """Whether one input of one node is all that needs a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def computed_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes a value, where it is that operator of ONNX; else None."""
    node = producer_of(value)
    return node if node is not None and operator(node) == op_type else None


def known_producer(value: ir.Value) -> ir.Node:
    """Return the node that computes a value; raises InvariantError where none does."""
    node = value.producer()
    if node is None:
        raise InvariantError(f"no node computes '{value.name}'")
    return node


def known_operand(node: ir.Node, index: int) -> ir.Value:
    """Return an input of a node; raises InvariantError where it is left out."""
    value = operand(node, index)
    if value is None:
        raise InvariantError(f"node '{node_label(node)}' has no input {index}")
    return value


def known_tensor(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of a constant; raises InvariantError for anything else."""
    tensor = constant_tensor(value)
    if tensor is None:
        raise InvariantError(f"'{value.name}' is not a constant")
    return tensor


def weight_operand(view: ModelInfo, node: ir.Node, op_type: str) -> int | None:
    """Return which input of a product or sum is the one constant that a model holds as a weight."""
    if operator(node) != op_type or len(node.inputs) != 2:
        return None
    constant = [view.tensor(value) is not None for value in node.inputs]
    return constant.index(True) if sum(constant) == 1 else None
