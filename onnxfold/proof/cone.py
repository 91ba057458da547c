"""The nodes of one model upstream of a value, down to known values."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.check.reference import is_stochastic
from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.traversal import bodies, reached
from onnxfold.proof.coverage import READ_NO_NUMBERS
from onnxfold.proof.leaf import MAY_BE_FLOATS

_MOST_NODES = 96
_MOST_IN_LINE = 1 << 17  # long chains of adding or multiplying constants count as one
_PAIR = 2


class Unprovable(Exception):  # noqa: N818  # ends the test of one region
    """The reason why a region cannot be tested."""


@dataclass(frozen=True, slots=True)
class Cone:
    """Nodes in order, and the values from which they start."""

    nodes: tuple[ir.Node, ...]
    leaves: tuple[ir.Value, ...]


def cone_of(
    view: ModelInfo,
    order: Mapping[ir.Node, int],
    value: ir.Value,
    stops: Callable[[ir.Value, int], bool],
) -> Cone:
    """Return the nodes that compute a value from values that are stops at their depth, or sources.

    Integers of at most one axis are traced to their origin, because sizes must fit the draws.
    Raises Unprovable if a node has bodies or draws numbers, or if there are too many nodes.
    """
    nodes: dict[ir.Node, None] = {}
    leaves: dict[ir.Value, None] = {}
    waiting, seen, in_line = deque([(value, 0)]), {value}, 0
    while waiting:
        current, depth = waiting.popleft()
        node = current.producer()
        constant = view.tensor(current) is not None
        if constant or node is None or (stops(current, depth) and not _follows(current)):
            leaves[current] = None
            continue
        in_line += _is_in_line(view, node)
        too_many = len(nodes) - in_line > _MOST_NODES or in_line > _MOST_IN_LINE
        if bodies(node) or is_stochastic(node) or too_many:
            raise Unprovable(f"node '{node_label(node)}' ({operator(node)}) cannot be tested")
        nodes[node] = None
        for operand in node.inputs:
            if operand is not None and operand not in seen:
                seen.add(operand)
                waiting.append((operand, depth + 1))
    return Cone(tuple(sorted(nodes, key=order.__getitem__)), tuple(leaves))


def _is_in_line(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a node computes a value from one other and constants of at most one axis."""
    tensors = [view.tensor(operand) for operand in node.inputs]
    return len(tensors) == _PAIR and any(
        tensor is not None and sum(dim > 1 for dim in tensor.shape.numpy()) <= 1
        for tensor in tensors
    )


def _follows(value: ir.Value) -> bool:
    """Whether a value may be sizes, or select between sizes: indices and masks have more axes.

    PyTorch reverses the amounts of a Pad as pairs, which depend only on sizes and constants.
    """
    node, shape = value.producer(), value.shape
    if node is None or value.dtype is None:
        return False
    if shape is not None and len(shape) > 1 and not (_are_pairs(shape) and _come_of_sizes(value)):
        return False
    decides = value.dtype is ir.DataType.BOOL and value.shape is not None
    return value.dtype.is_integer() or (decides and not any(map(_is_float, node.inputs)))


def _are_pairs(shape: ir.Shape) -> bool:
    return len(shape) == _PAIR and _PAIR in shape and all(isinstance(dim, int) for dim in shape)


def _come_of_sizes(value: ir.Value) -> bool:
    """Whether numbers depend only on constants and the sizes of other values."""
    found = reached([value], _before)
    return all(each.producer() is not None or each.const_value is not None for each in found)


def _before(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    if node is None or node.op_type in READ_NO_NUMBERS:
        return []
    return [operand for operand in node.inputs if operand is not None]


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in MAY_BE_FLOATS
