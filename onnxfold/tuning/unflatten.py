"""Products of flattened rows, rewritten as products of unflattened rows.

Before    x [B, T, K] -> Reshape [B*T, K] -> Gemm(., W, b) -> Reshape [B, T, N] -> y
After     x [B, T, K] -> MatMul(., W) -> Add(., b) -> y

PyTorch's addmm, in every Conv1D of GPT-2, exports as the former. onnxscript's fusions remove the
Reshapes and leave a Gemm of three axes, which no session loads; runtimes fuse attention, biases and
residual additions around the latter.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graph.edit import replace_node, sweep
from onnxfold.shapes import infer

Shapes = dict[str, ir.Shape | None]


def unflatten(model: ir.Model) -> int:
    """Rewrite every such Gemm in place, and return the count."""
    shapes: Shapes = {
        str(value.name): value.shape
        for node in infer(model.clone()).model.graph
        for value in node.outputs
    }
    shapes |= {str(value.name): value.shape for value in model.graph.inputs}
    gemms = [node for node in model.graph if node.op_type == "Gemm" and node.domain == ""]
    return sum(_rewritten(node, shapes) for node in gemms)


def _rewritten(gemm: ir.Node, shapes: Shapes) -> bool:
    rows, weight = gemm.inputs[0], gemm.inputs[1]
    flatten = None if rows is None else rows.producer()
    uses = list(gemm.outputs[0].uses())
    if weight is None or len(uses) != 1 or gemm.outputs[0].is_graph_output() or not _is_plain(gemm):
        return False
    restore = uses[0].node
    if flatten is None or {flatten.op_type, restore.op_type} != {"Reshape"}:
        return False
    nodes: list[ir.Node] = []
    x = _unflattened(flatten, restore, gemm, shapes, nodes)
    if x is None:
        return False
    if gemm.attributes.get_int("transB", 0):
        nodes.append(ir.node("Transpose", [weight], {"perm": [1, 0]}))
        weight = nodes[-1].outputs[0]
    nodes.append(ir.node("MatMul", [x, weight], name=gemm.name))
    bias = gemm.inputs[2] if len(gemm.inputs) > 2 else None
    if bias is not None:
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], bias]))
    replace_node(restore, nodes, {0: nodes[-1].outputs[0]})
    sweep([flatten, gemm])
    return True


def _unflattened(
    flatten: ir.Node, restore: ir.Node, gemm: ir.Node, shapes: Shapes, nodes: list[ir.Node]
) -> ir.Value | None:
    """Return the unflattened rows, computed by added nodes; None if their shape is unknown."""
    x, shape = flatten.inputs[0], restore.inputs[1]
    before, flat = (shapes.get(_name(v)) for v in (x, flatten.outputs[0]))
    product, after = (shapes.get(_name(v)) for v in (gemm.outputs[0], restore.outputs[0]))
    if x is None or before is None or after is None or flat is None or product is None:
        return None
    width = flat[-1]
    if len(flat) != 2 or not isinstance(width, int) or after[-1] != product[-1]:
        return None
    if tuple(before) == (*after[:-1], width):
        return x
    target = None if shape is None else _of_width(shape, width, nodes)
    if target is None:
        return None
    nodes.append(ir.node("Reshape", [x, target]))
    return nodes[-1].outputs[0]


def _of_width(shape: ir.Value, width: int, nodes: list[ir.Node]) -> ir.Value | None:
    """Return a shape, stored or concatenated, with another last size."""
    last = ir.tensor([width], dtype=ir.DataType.INT64)
    known, producer = ir.convenience.get_const_tensor(shape), shape.producer()
    if known is not None:
        sizes = ir.tensor([*known.numpy()[:-1].tolist(), width], dtype=ir.DataType.INT64)
        nodes.append(ir.node("Constant", [], {"value": sizes}))
    elif producer is not None and producer.op_type == "Concat":
        nodes.append(ir.node("Constant", [], {"value": last}))
        parts = [*producer.inputs[:-1], nodes[-1].outputs[0]]
        nodes.append(ir.node("Concat", parts, {"axis": 0}))
    else:
        return None
    return nodes[-1].outputs[0]


def _name(value: ir.Value | None) -> str:
    return "" if value is None else str(value.name)


def _is_plain(gemm: ir.Node) -> bool:
    scales = {name: gemm.attributes.get_float(name, 1.0) for name in ("alpha", "beta")}
    return set(scales.values()) == {1.0} and not gemm.attributes.get_int("transA", 0)
