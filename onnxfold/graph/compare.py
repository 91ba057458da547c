"""Equality of the nodes and constants of two models."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.graph.rows import paired_rows, stored_rows

__all__ = ["pairs", "same_attributes", "same_default", "same_tensor"]


def pairs(node: ir.Node, twin: ir.Node) -> tuple[tuple[ir.Value | None, ir.Value | None], ...]:
    """Pair the inputs; what one node lacks at the end is None."""
    length = max(len(node.inputs), len(twin.inputs))
    filled = [[*n.inputs, *(None,) * (length - len(n.inputs))] for n in (node, twin)]
    return tuple(zip(*filled, strict=True))


def same_tensor(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether two tensors have the same type, shape and numbers."""
    same = a.dtype == b.dtype and tuple(a.shape.numpy()) == tuple(b.shape.numpy())
    rows = paired_rows(stored_rows(a), stored_rows(b)) if same else ()
    return same and all(np.array_equal(first, second) for first, second in rows)


def same_default(a: ir.Value, b: ir.Value) -> bool:
    """Whether two graph inputs have the same default, which callers may override, or none."""
    first, second = a.const_value, b.const_value
    if first is None or second is None or first is second:
        return first is second
    return same_tensor(first, second)


def same_attributes(a: ir.Node, b: ir.Node) -> bool:
    """Whether two nodes have the same attributes, bodies left out."""
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    if set(a.attributes) != set(b.attributes):
        return False
    for name, first in a.attributes.items():
        second = b.attributes[name]
        if first.type != second.type:
            return False
        if first.type in graphs:
            continue  # bodies are walked node by node
        if first.type is ir.AttributeType.TENSOR:
            if not same_tensor(first.as_tensor(), second.as_tensor()):
                return False
        elif first.value != second.value:
            return False
    return True
