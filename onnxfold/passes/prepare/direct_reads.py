"""Values read where they come from: behind an Identity, an unbound sequence, and states of a loop.

Exporters name a value twice, or share a weight, by Identity.  Paddle2ONNX puts one behind most
operators, and TorchScript gives the second user of a weight one, which a loop around that user
leaves outside.  TorchScript runs recurrent layers, as a stacked LSTM with LayerNorm, over the
elements of a sequence, of which no operator behind it has a shape: SequenceAt(unbind(x), i) = x[i].
tf2onnx gives the loops of Keras' LSTM and GRU their weights as states, whose next value is their
value at every step.
"""

import onnx_ir as ir

from onnxfold.graph import constant_tensor, node_label, operator
from onnxfold.graph.edit import drop_states, set_input, sweep
from onnxfold.graph.sequences import behind_unbind, is_unbind
from onnxfold.graph.traversal import all_graphs, all_nodes, graph_values
from onnxfold.passes.split_skip_norms import Builder


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


def pick_from_tensors(model: ir.Model) -> tuple[str, ...]:
    """Replace SequenceAt and SequenceLength of unbound tensors, in place; return their names.

    Shapes that the model declares behind them are forgotten, but for its outputs': exporters infer
    them as if the axis were still there.
    """
    found = [node for node in all_nodes(model) if is_unbind(node)]
    if not found:
        return ()
    for value in behind_unbind(model) - set(model.graph.outputs):
        if not value.is_graph_input():  # a state has the shape of what it begins with
            value.shape = None
    builder, names = Builder(model), []
    for unbind in found:
        for use in list(unbind.outputs[0].uses()):
            if use.node.op_type in _REPLACED and not use.node.domain:
                names.append(node_label(use.node))
                _REPLACED[use.node.op_type](builder, use.node, unbind)
    sweep(found)
    return tuple(names)


def _pick(builder: Builder, node: ir.Node, unbind: ir.Node) -> None:
    call, axis = builder.at(node), unbind.attributes.get_int("axis", 0)
    (element,) = call.emit("Gather", (unbind.inputs[0], call.required(1)), axis=axis)
    call.finish({0: element})


def _count(builder: Builder, node: ir.Node, unbind: ir.Node) -> None:
    call, axis = builder.at(node), unbind.attributes.get_int("axis", 0)
    (sizes,) = call.emit("Shape", (unbind.inputs[0],))
    (place,) = call.emit("Constant", (), value=ir.tensor(axis, dtype=ir.DataType.INT64))
    (size,) = call.emit("Gather", (sizes, place), axis=0)
    call.finish({0: size})


_REPLACED = {"SequenceAt": _pick, "SequenceLength": _count}


_FIRST_STATE = {"Loop": (2, 1), "Scan": (0, 0)}  # among inputs; among outputs of the body
_SCAN_WITHOUT_BATCHES = 9  # opset: the older Scan has another first input, and an axis of batches


def read_from_outside(model: ir.Model) -> int:
    """Take the states that are weights and stay as they are from every loop, in place.

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
    """Whether the next value of a state is its value, maybe behind Identity."""
    node = after.producer()
    while node is not None and operator(node) == "Identity" and node.inputs[0] is not None:
        after = node.inputs[0]
        node = after.producer()
    return after is before
