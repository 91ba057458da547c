"""Elements of an unbound tensor, picked from the tensor itself: SequenceAt(unbind(x), i) = x[i].

TorchScript runs recurrent layers, such as a stacked LSTM with LayerNorm, over the elements of a
sequence, which hides their shape from downstream operators. Gather reveals it, and copies one step
instead of all.
"""

import onnx_ir as ir

from onnxfold.graph import node_label
from onnxfold.graph.edit import sweep
from onnxfold.graph.sequences import behind_unbind, is_unbind
from onnxfold.graph.traversal import all_nodes
from onnxfold.passes.split_skip_norms import Builder


def pick_from_tensors(model: ir.Model) -> tuple[str, ...]:
    """Replace SequenceAt and SequenceLength of unbound tensors, in place; return their names.

    Declared shapes downstream are dropped, except the outputs': exporters infer them as if the axis
    were still there.
    """
    found = [node for node in all_nodes(model) if is_unbind(node)]
    if not found:
        return ()
    for value in behind_unbind(model) - set(model.graph.outputs):
        if not value.is_graph_input():  # a state has the shape of its initial value
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
