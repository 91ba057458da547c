"""Subtracted constants as added ones: h - c = h + (-c), exactly.

A layer without a bias has it in a following Add, which absorbs what moves into the layer; a
spelled-out norm has its beta there. A Gemm without C can absorb it as C, times 1.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, operator
from onnxfold.graph.edit import add_constant, drop_weight, set_input
from onnxfold.graph.operands import known_operand, operand
from onnxfold.graph.traversal import graph_values
from onnxfold.operators.new_nodes import weight_value


def add_biases(view: ModelInfo) -> int:
    """Prepare layers of a typed working copy for biases; return how many are changed.

    return how many are changed. Every Sub of a constant becomes an Add, and a Gemm without C loses
    its factor for C.
    """
    subtractions = [node for node in view.nodes() if _takes_bias(view, node)]
    taken = {value.name for graph in view.graphs for value in graph_values(graph)}
    idle = [node for node in view.nodes() if _scales_nothing(node)]
    for node in idle:
        node.attributes.pop("beta")
    return sum(_add(view, node, taken) for node in subtractions) + len(idle)


def _scales_nothing(node: ir.Node) -> bool:
    """Whether a Gemm without C has a factor for it, as jax2onnx writes layers of Equinox."""
    without = operator(node) == "Gemm" and operand(node, 2) is None
    return without and "beta" in node.attributes


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
