"""Neighbors of a value or a node, where there may be none, or must be one."""

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.constants import constant_tensor
from onnxfold.graph.model_info import ModelInfo, node_label, operator

_BROADCAST = "0123456789"  # labels of the axes in an ellipsis, from the right


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


def einsum_labels(node: ir.Node, ranks: Sequence[int | None]) -> tuple[list[str], str] | None:
    """Return the label of every axis of the factors and of the result of an explicit equation.

    ``ranks`` are the ranks of the factors. An ellipsis represents axes that broadcast, aligned from
    the right; they are labeled by digits. Returns None if a rank is unknown, or the result omits
    broadcast axes of the factors.
    """
    equation = (node.attributes.get_string("equation", "") or "").replace(" ", "")
    if "->" not in equation:
        return None
    left, result = equation.split("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or ("..." in left) != ("..." in result):
        return None
    factors: list[str] = []
    most = 0
    for term, rank in zip(terms, ranks, strict=True):
        hidden = 0 if rank is None else rank - len(term.replace("...", ""))
        if "..." in term and (rank is None or not 0 <= hidden <= len(_BROADCAST)):
            return None
        most = max(most, hidden if "..." in term else 0)
        factors.append(_spelled_out(term, hidden))
    spelled = _spelled_out(result, most)
    return (factors, spelled) if len(set(spelled)) == len(spelled) else None


def _spelled_out(term: str, hidden: int) -> str:
    return term.replace("...", _BROADCAST[:hidden][::-1])
