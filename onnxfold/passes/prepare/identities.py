"""Operands of Identity, read directly: exporters use one to rename a value, or to share a weight.

Paddle2ONNX writes one after most operators, and TorchScript one for the second user of a weight,
outside of a loop that contains the user.
"""

import onnx_ir as ir

from onnxfold.graph.edit import set_input, sweep
from onnxfold.graph.traversal import all_nodes


def read_directly(model: ir.Model) -> int:
    """Let all nodes that read an Identity read its operand, in place; outputs keep their names.

    Returns how many Identities are read by nodes.
    """
    copies = [node for node in all_nodes(model) if _is_read_identity(node)]
    for node in copies:
        copy, value = node.outputs[0], node.inputs[0]
        if value is None:
            continue
        if value.shape is None:
            value.shape = copy.shape
        for use in tuple(copy.uses()):
            set_input(use.node, use.idx, value)
    sweep(copies)
    return len(copies)


def _is_read_identity(node: ir.Node) -> bool:
    return node.op_type == "Identity" and not node.domain and bool(node.outputs[0].uses())
