"""One number through operators: f(c x) = c f(x), even if x has several readers that meet again.

A rotary embedding is x * cos + turned(x) * sin, with turned(x) made of Slices of x, Neg and Concat:
every path from x to the sum carries a factor once.
"""

from collections.abc import Collection

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.operators import facets
from onnxfold.operators.families.cut_parts import element_readers
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.row import Elements
from onnxfold.operators.table import row_of

_MOST_NODES = 64  # one rotary embedding has about ten


def carries_factor(view: ModelInfo, node: ir.Node, scaled: Collection[int]) -> bool:
    """Whether scaling the inputs ``scaled`` by c, and no others, scales each output by c.

    f(c x) = c f(x) for every number c, in the element type of x.
    """
    row, inputs = row_of(node), set(scaled)
    if elements_of(view, node)[0] > Elements.LINEAR or not _gives_alike(node):
        return False
    data = facets.data_inputs(row, len(node.inputs))
    if not row.alone:
        return inputs == set(data)
    bias = {i for i, value in enumerate(node.inputs) if i == row.bias and value is not None}
    return bias <= inputs and len(inputs - bias) == 1 and inputs - bias <= set(data)


def _gives_alike(node: ir.Node) -> bool:
    """Whether all outputs that are read consist of the input's numbers."""
    rest = node.outputs[1:]
    unread = not any(output.uses() or output.is_graph_output() for output in rest)
    return unread or facets.scales_every_output(row_of(node))


def common_source(view: ModelInfo, value: ir.Value) -> ir.Value | None:
    """Return the nearest x, over several paths, with value = f(x) and f(c x) = c f(x), or None.

    Only ``value`` then depends on x, in the same graph.
    """
    seen: dict[ir.Value, None] = {value: None}
    waiting = [value]
    while waiting and len(seen) <= _MOST_NODES:
        current = waiting.pop(0)
        ways = sum(len(node.outputs) for node in element_readers(current))
        if current is not value and ways > 1 and _all_meet(view, current, value):
            return current
        node = current.producer()
        if node is None or view.array(current) is not None:
            continue
        for index in _activations(view, node):
            operand = node.inputs[index]
            if operand is not None and operand not in seen:
                seen[operand] = None
                waiting.append(operand)
    return None


def _activations(view: ModelInfo, node: ir.Node) -> tuple[int, ...]:
    """Return the inputs from which a factor may have come."""
    elements, _ = elements_of(view, node)
    every = facets.data_inputs(row_of(node), len(node.inputs))
    return every if elements <= Elements.LINEAR else ()


def _all_meet(view: ModelInfo, start: ir.Value, end: ir.Value) -> bool:
    """Whether scaling ``start`` by c scales ``end`` by c, and nothing else that is read."""
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
            if _carries(view, node, scaled) and not scaled.issuperset(node.outputs):
                scaled |= set(node.outputs)
                waiting += node.outputs
    # A node may have been visited before all of its inputs were known to be scaled.
    return end in scaled and all(_carries(view, node, scaled) for node in touched)


def _carries(view: ModelInfo, node: ir.Node, scaled: Collection[ir.Value]) -> bool:
    return carries_factor(view, node, [i for i, value in enumerate(node.inputs) if value in scaled])
