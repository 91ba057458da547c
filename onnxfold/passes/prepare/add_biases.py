"""Constants that are taken from something, added: h - c = h + (-c), exactly.

A layer without a bias of its own has it in an Add behind, which takes what moves into the layer; a
norm that is spelled out has its beta there.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, operator
from onnxfold.graph.edit import add_constant, drop_weight, set_input
from onnxfold.graph.operands import known_operand
from onnxfold.graph.traversal import graph_values
from onnxfold.operators.new_nodes import weight_value


def add_biases(view: ModelInfo) -> int:
    """Make an Add of every Sub of a constant in a working copy with types; return how many."""
    subtractions = [node for node in view.nodes() if _takes_bias(view, node)]
    taken = {value.name for graph in view.graphs for value in graph_values(graph)}
    return sum(_add(view, node, taken) for node in subtractions)


def _takes_bias(view: ModelInfo, node: ir.Node) -> bool:
    if operator(node) != "Sub" or view.is_constant(known_operand(node, 0)):
        return False
    tensor = view.tensor(node.inputs[1])
    return tensor is not None and tensor.dtype in FLOATS


def _add(view: ModelInfo, node: ir.Node, taken: set[str | None]) -> bool:
    bias = known_operand(node, 1)
    array, name = view.array(bias), f"{node.outputs[0].name}.bias"
    if array is None or name in taken or not isinstance(node.graph, ir.Graph):
        return False
    negated = weight_value(name, np.negative(array))
    add_constant(node.graph, negated)
    set_input(node, 1, negated)
    node.op_type = "Add"
    drop_weight(bias)
    return True
