"""Weights that bodies read through an Identity of the graph around them, read directly.

TorchScript gives the second user of a shared weight an Identity of it, and leaves that outside the
loop, where it is a computed value and no weight any more.
"""

import onnx_ir as ir

from onnxfold.graph import constant_tensor
from onnxfold.graph.edit import redirect, sweep
from onnxfold.graph.traversal import all_nodes


def read_directly(model: ir.Model) -> int:
    """Let bodies, and all who read the same Identity, read the weight itself, in place.

    Returns how many Identities are candidates.
    """
    copies = [node for node in all_nodes(model) if _is_read_in_a_body(node)]
    for node in copies:
        weight = node.inputs[0]
        if weight is not None and constant_tensor(weight) is not None:
            redirect(node.outputs[0], weight)
    sweep(copies)
    return len(copies)


def _is_read_in_a_body(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain:
        return False
    return any(use.node.graph is not node.graph for use in node.outputs[0].uses())
