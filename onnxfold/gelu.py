"""GELU in the spelling that runtimes fuse: x (0.5 (1 + erf(x / sqrt 2))) = (x (1 + erf(..))) 0.5.

PyTorch's newer exporter multiplies by 0.5 first.  ONNX Runtime 1.31 then runs five operators where
it has one, Gelu or BiasGelu, for the older spelling; they cost more than the norms beside them.
A product with 0.5 rounds nothing, so the two are equal bit for bit, unless x (1 + erf) overflows
where half of it does not: types of a small range are left alone.
"""

from __future__ import annotations

from collections.abc import Set

import onnx_ir as ir

from onnxfold.graph import GraphView
from onnxfold.graph.shapes import graph_values

__all__ = ["respell_gelu"]

_WIDE_RANGE = (ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def respell_gelu(model: ir.Model) -> tuple[str, ...]:
    """Spell every GELU of a working copy with types alike; return the names of those that changed.

    The result keeps its name and its bits.
    """
    if not any(node.op_type == "Erf" for graph in model.graphs() for node in graph):
        return ()
    view = GraphView(model)
    taken = {value.name for graph in view.graphs for value in graph_values(graph)}
    changed = [node for node in view.nodes() if _respell(view, node, taken)]
    return tuple(node.outputs[0].name or "" for node in changed)


def _respell(view: GraphView, node: ir.Node, taken: Set[str | None]) -> bool:
    if not _is(node, "Mul") or node.outputs[0].dtype not in _WIDE_RANGE:
        return False
    for index in (0, 1):
        x, gate = node.inputs[1 - index], node.inputs[index]
        halved = None if gate is None else gate.producer()
        if x is None or gate is None or halved is None or not _is(halved, "Mul"):
            continue
        alone = len(gate.uses()) == 1 and not gate.is_graph_output()
        half = _constant(view, halved, 0.5)
        name = f"{node.outputs[0].name}.doubled"
        if not alone or half is None or name in taken or halved.graph is not node.graph:
            continue
        if not _is_gate(view, halved.inputs[1 - half], x):
            continue
        node.replace_input_with(1 - index, halved.inputs[half])
        halved.replace_input_with(half, x)
        gate.name, gate.shape, gate.type = name, x.shape, x.type
        return True
    return False


def _is_gate(view: GraphView, value: ir.Value | None, x: ir.Value) -> bool:
    """Whether the value is 1 + erf(x times or by a constant), of the shape of x."""
    total = None if value is None else value.producer()
    one = None if total is None or not _is(total, "Add") else _constant(view, total, 1.0)
    erf = None if total is None or one is None else _producer(total.inputs[1 - one])
    scaled = _producer(erf.inputs[0]) if erf is not None and erf.op_type == "Erf" else None
    if scaled is None or scaled.op_type not in ("Mul", "Div") or x not in scaled.inputs:
        return False
    return view.shape(x) is not None and view.shape(value) == view.shape(x)


def _producer(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and not node.domain else None


def _constant(view: GraphView, node: ir.Node, number: float) -> int | None:
    """Return which operand is this number."""
    return next((i for i, value in enumerate(node.inputs) if view.scalar(value) == number), None)


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain and len(node.inputs) == 2
