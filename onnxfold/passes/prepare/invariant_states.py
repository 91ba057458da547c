"""Replace loop-invariant weight states by outer-scope reads.

A state of Loop or Scan whose next value is its value is constant, at every step and after the last
one. tf2onnx passes the weights of Keras' LSTM and GRU to their loops as such states.
"""

import onnx_ir as ir

from onnxfold.graph import constant_tensor, operator
from onnxfold.graph.edit import drop_states
from onnxfold.graph.traversal import all_graphs, graph_values

_FIRST_STATE = {"Loop": (2, 1), "Scan": (0, 0)}  # among inputs; among outputs of the body
_SCAN_WITHOUT_BATCHES = 9  # opset: the older Scan has another first input, and a batch axis


def read_from_outside(model: ir.Model) -> int:
    """Remove states that are constant weights from every loop, in place.

    Returns how many there were.
    """
    old = model.graph.opset_imports.get("", 1) < _SCAN_WITHOUT_BATCHES
    taken = 0
    for graph in list(all_graphs(model)):
        for node in list(graph):
            if node.domain or node.op_type not in _FIRST_STATE or (old and node.op_type == "Scan"):
                continue
            taken += _free(node, node.attributes["body"].as_graph())
    return taken


def _free(loop: ir.Node, body: ir.Graph) -> int:
    first, behind = _FIRST_STATE[loop.op_type]
    scanned = loop.attributes.get_int("num_scan_inputs", 0)
    taken = {value.name for value in graph_values(body)}
    weights: dict[int, ir.Value] = {}
    for state in range(len(loop.inputs) - first - scanned):
        weight, inside = loop.inputs[first + state], body.inputs[first + state]
        if weight is None or constant_tensor(weight) is None or weight.name in taken:
            continue
        seen = loop.outputs[state].is_graph_output() or list(body.outputs).count(inside) > 1
        if not seen and _stays(inside, body.outputs[behind + state]):
            weights[state] = weight
    drop_states(loop, body, weights, (first, behind))
    return len(weights)


def _stays(before: ir.Value, after: ir.Value) -> bool:
    """Whether the next value of a state is its value, possibly through Identity."""
    node = after.producer()
    while node is not None and operator(node) == "Identity" and node.inputs[0] is not None:
        after = node.inputs[0]
        node = after.producer()
    return after is before
