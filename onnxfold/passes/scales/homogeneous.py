"""One number through operators: f(c x) = c f(x), also where x has several readers that meet again.

A rotary embedding is x * cos + turned(x) * sin, with turned(x) made of Slices of x, Neg and Concat:
every way from x to the sum takes a factor along once.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.passes.scales.parts import element_readers

__all__ = ["FLOATS", "HOMOGENEOUS", "carries_factor", "common_source"]

# f(c x) = c f(x) in the first input, whatever the others are.
HOMOGENEOUS = frozenset({"Expand", "Neg", "RotaryEmbedding", "Slice", "Tile"})
_LAYOUTS = HOMOGENEOUS | frozenset(
    {"Flatten", "Gather", "Identity", "Reshape", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_ALIKE = frozenset({"Add", "Concat", "Sub", "Sum"})  # linear in all inputs together
_FACTORS = frozenset({"FusedMatMul", "MatMul", "Mul"})  # linear in each input alone
_DOMAINS = ("", "com.microsoft")
FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
_MOST_NODES = 64  # of one rotary embedding there are some ten


def carries_factor(node: ir.Node, scaled: Collection[int]) -> bool:
    """Whether c times the inputs ``scaled``, and the others as they are, give c times each output.

    Law: f(c x) = c f(x) for every number c, in the element type of x.
    """
    if node.domain not in _DOMAINS or any(index >= len(node.inputs) for index in scaled):
        return False
    if node.op_type in _LAYOUTS:
        return set(scaled) == {0}
    if (node.domain, node.op_type) == ("", "Cast"):
        ends = (node.inputs[0], node.outputs[0])
        floating = all(end is not None and end.dtype in FLOATS for end in ends)
        return floating and set(scaled) == {0}
    if node.domain == "" and node.op_type in _ALIKE:
        return set(scaled) == set(range(len(node.inputs)))
    if node.op_type == "Div" and node.domain == "":
        return set(scaled) == {0}
    return node.op_type in _FACTORS and len(set(scaled)) == 1 and set(scaled) <= {0, 1}


def common_source(view: ModelInfo, value: ir.Value) -> ir.Value | None:
    """Return the nearest x, in several ways, of value = f(x), f(c x) = c f(x), None without one.

    Nothing but ``value`` then depends on x, in the same graph.
    """
    seen: dict[ir.Value, None] = {value: None}
    waiting = [value]
    while waiting and len(seen) <= _MOST_NODES:
        current = waiting.pop(0)
        ways = sum(len(node.outputs) for node in element_readers(current))
        if current is not value and ways > 1 and _all_meet(current, value):
            return current
        node = current.producer()
        if node is None or view.array(current) is not None:
            continue
        for index in _activations(node):
            operand = node.inputs[index]
            if operand is not None and operand not in seen:
                seen[operand] = None
                waiting.append(operand)
    return None


def _activations(node: ir.Node) -> range:
    """Return the inputs from which a factor may have come."""
    if any(carries_factor(node, (index,)) for index in (0, 1)):
        return range(2) if carries_factor(node, (1,)) else range(1)
    return range(len(node.inputs)) if carries_factor(node, range(len(node.inputs))) else range(0)


def _all_meet(start: ir.Value, end: ir.Value) -> bool:
    """Whether c times ``start`` is c times ``end``, and nothing else that is read."""
    scaled = {start}
    waiting = [start]
    touched: dict[ir.Node, None] = {}
    while waiting:
        value = waiting.pop()
        if value is end:
            continue
        if value.is_graph_output() or len(touched) > _MOST_NODES:
            return False
        for node in element_readers(value):
            touched[node] = None
            if node.graph is not end.graph:
                return False
            if _carries(node, scaled) and not scaled.issuperset(node.outputs):
                scaled |= set(node.outputs)
                waiting += node.outputs
    # A node may have been passed before all of its inputs were known to be scaled.
    return end in scaled and all(_carries(node, scaled) for node in touched)


def _carries(node: ir.Node, scaled: Collection[ir.Value]) -> bool:
    return carries_factor(node, [i for i, value in enumerate(node.inputs) if value in scaled])
