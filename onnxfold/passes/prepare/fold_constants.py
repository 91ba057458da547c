"""Constant expressions in products and sums, stored as weights: x * (1 + g) as x * g'.

Only a stored constant can be merged or move, and be followed by the proof. It has the bits that
every runtime computes: IEEE 754 defines how sums, products and conversions are rounded.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, operator
from onnxfold.graph.edit import add_constant, set_input, sweep
from onnxfold.graph.operands import operands, producer_of
from onnxfold.graph.reached import reached
from onnxfold.graph.traversal import graph_values
from onnxfold.operators import facets
from onnxfold.operators.new_nodes import weight_value
from onnxfold.operators.table import row_of

_READERS = ("Add", "Mul")


def fold_constants(view: ModelInfo) -> int:
    """Store the expressions of a working copy with types; return how many."""
    found = dict.fromkeys(
        value
        for node in view.nodes()
        if operator(node) in _READERS and any(view.array(value) is None for value in node.inputs)
        for value in node.inputs
        if value is not None and _is_expression(view, value)
    )
    taken = {value.name for graph in view.graphs for value in graph_values(graph)} if found else ()
    return sum(f"{value.name}.folded" not in taken and _fold(view, value) for value in found)


def _is_expression(view: ModelInfo, value: ir.Value) -> bool:
    node = producer_of(value)
    if node is None or node.op_type == "Constant" or view.tensor(value) is not None:
        return False
    return value.dtype in FLOATS and isinstance(node.graph, ir.Graph)


def _fold(view: ModelInfo, value: ir.Value) -> bool:
    array, node = view.array(value), producer_of(value)
    if array is None or node is None or not isinstance(node.graph, ir.Graph):
        return False
    before = reached([value], lambda each: operands(producer_of(each)))
    makers = [maker for each in before if (maker := producer_of(each)) is not None]
    if not all(facets.alike_everywhere(row_of(maker)) for maker in makers if maker.inputs):
        return False
    weight = weight_value(f"{value.name}.folded", np.array(array))
    add_constant(node.graph, weight)
    for use in list(value.uses()):
        if operator(use.node) in _READERS:
            set_input(use.node, use.idx, weight)
    sweep(reversed(makers))
    return True
