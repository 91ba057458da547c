"""A Reshape behind a norm, moved back in front of it where the original has it there.

    norm(reshape(x)) = reshape(norm(x))    where the Reshape keeps the axes of the norm whole

Residual fusion makes the two change places; the proof compares norms that read the same value.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graph import ModelInfo, follow_reshape, whole_axes
from onnxfold.operators.functions import DOMAIN, SIGNATURES

__all__ = ["pull_reshapes"]


def pull_reshapes(after: ModelInfo, before: ModelInfo) -> ModelInfo:
    """Move such Reshapes of the rewritten model, in place, and return a view of the outcome."""
    known = before.by_ref()
    moves = []
    for norm in after.nodes():
        reshape = _reshape_behind(after, norm)
        old = None if reshape is None else known.get(after.ref(reshape.outputs[0]))
        producer = None if old is None else old.producer()
        if reshape is None or producer is None or producer.op_type == "Reshape":
            continue
        if after.ref(norm.outputs[0]) not in known and _keeps_axes(after, norm, reshape):
            moves.append((norm, reshape))
    for norm, reshape in moves:
        _pull(norm, reshape)
    return ModelInfo(after.model) if moves else after


def _reshape_behind(view: ModelInfo, norm: ir.Node) -> ir.Node | None:
    """Return the Reshape that alone reads the result of a norm of ours."""
    if norm.domain != DOMAIN or norm.op_type not in SIGNATURES or len(norm.outputs) != 1:
        return None
    readers = view.readers(norm.outputs[0])
    if len(readers) != 1 or readers[0].index != 0 or norm.outputs[0].is_graph_output():
        return None
    node = readers[0].node
    is_reshape = (node.domain, node.op_type) == ("", "Reshape") and node.graph is norm.graph
    return node if is_reshape else None


def _keeps_axes(view: ModelInfo, norm: ir.Node, reshape: ir.Node) -> bool:
    inner, outer = view.shape(norm.inputs[0]), view.shape(reshape.outputs[0])
    if inner is None or outer is None:
        return False
    axes = norm.attributes.get_ints("axes", (-1,))
    if min(len(inner), len(outer)) < len(axes):
        return False
    fiber, reached = (whole_axes(s, [axis % len(s) for axis in axes]) for s in (inner, outer))
    return fiber is not None and follow_reshape(fiber, inner, outer) == reached


def _pull(norm: ir.Node, reshape: ir.Node) -> None:
    graph, result = norm.graph, reshape.outputs[0]
    if graph is None:
        raise ValueError("a norm stands in no graph")
    pulled = ir.node(
        "Reshape",
        (norm.inputs[0], *reshape.inputs[1:]),
        dict(reshape.attributes),
        name=reshape.name,
    )
    value = pulled.outputs[0]
    value.name = f"{norm.outputs[0].name}.pulled"
    value.shape, value.type = result.shape, result.type
    norm.replace_input_with(0, value)
    graph.remove(norm)
    graph.insert_before(reshape, [pulled, norm])
    norm.outputs[0].shape = result.shape
    ir.convenience.replace_nodes_and_values(
        graph, reshape, [reshape], [], [result], [norm.outputs[0]]
    )
