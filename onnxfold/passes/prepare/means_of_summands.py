"""Means that are subtracted from a sum and are of one summand: they are taken from that.

    (v + a) - mean(a)  =  v + (a - mean(a))

A dueling head is written so, value + advantage - advantage.mean(dim=1, keepdim=True); a - mean(a)
moves into the weights before it.
"""

import onnx_ir as ir

from onnxfold.graph import keeps_dims, node_label
from onnxfold.graph.edit import sweep
from onnxfold.graph.operands import computed_by, is_read_once, operand
from onnxfold.graph.traversal import all_nodes
from onnxfold.passes.split_skip_norms import Builder


def subtract_from_summands(model: ir.Model) -> tuple[str, ...]:
    """Rewrite such differences, in place, and name them."""
    found = [(node, total) for node in all_nodes(model) if (total := _sum_before(node)) is not None]
    builder = Builder(model)
    for node, total in found:
        mean = node.inputs[1]
        reducer = computed_by(mean, "ReduceMean")
        summand = None if reducer is None else reducer.inputs[0]
        call = builder.at(node)
        (centred,) = call.emit("Sub", (summand, mean))
        operands = [centred if value is summand else value for value in total.inputs]
        (result,) = call.emit("Add", operands)
        call.finish({0: result})
        sweep([total])
    return tuple(node_label(node) for node, _ in found)


def _sum_before(node: ir.Node) -> ir.Node | None:
    """Return the Add from which a node takes the mean of one summand, if no other reads these."""
    if node.op_type != "Sub" or node.domain:
        return None
    total, mean = computed_by(node.inputs[0], "Add"), computed_by(node.inputs[1], "ReduceMean")
    if total is None or mean is None or not keeps_dims(mean):
        return None
    alone = all(is_read_once(each.outputs[0]) for each in (total, mean))
    return total if alone and list(total.inputs).count(operand(mean, 0)) == 1 else None
