"""Weights that products read transposed, stored transposed.

Before    table -> Gather,  table -> Transpose -> MatMul(x, .)  or  FusedMatMul(x, table, transB)
After     table -> Gather,  table^T -> MatMul(x, .)

Language models tie the token table to their head this way, as fusions write it. Quantizers handle
only stored weights of MatMul and skip such a product, which then dominates the time of a small
model; the file has a shared table twice, each in few bits.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.graph import operator
from onnxfold.graph.array_types import Array
from onnxfold.graph.constants import constant_tensor
from onnxfold.graph.edit import (
    add_constant,
    drop_weight,
    insert_before,
    redirect,
    replace_node,
    sweep,
)
from onnxfold.graph.operands import known_operand, known_tensor
from onnxfold.tuning.proved_rewriting import NotRewritten

_FUSED = "com.microsoft.FusedMatMul"
_OTHER_TURNS = ("transA", "transBatchA", "transBatchB")


def untie(model: ir.Model) -> int:
    """Store every such weight a second time, in place, and return the count."""
    nodes = [node for node in model.graph if _reads_transposed(node)]
    for node in nodes:
        table = _table(node)
        array, name = _turned(node), _name_of(node)
        weight = ir.Value(name=name, shape=ir.Shape(array.shape), type=table.type)
        weight.const_value = ir.tensor(array, dtype=known_tensor(table).dtype, name=name)
        add_constant(model.graph, weight)
        if node.op_type == "Transpose":
            redirect(node.outputs[0], weight)
            sweep([node])
        else:
            product = ir.node("MatMul", [known_operand(node, 0), weight], name=node.name)
            replace_node(node, [product], {0: product.outputs[0]})
            drop_weight(table)
    return len(nodes)


def tied_again(before: ir.Model, after: ir.Model) -> ir.Model:
    """Return a copy of ``after`` in which products read transposes of tables, as in ``before``.

    Raises NotRewritten if a stored weight is not the transpose of its table, bit by bit.
    """
    made = after.clone()
    weights = made.graph.initializers
    for node in filter(_reads_transposed, before.graph):
        table, copy = _table(node), weights[_name_of(node)]
        if _turned(node).tobytes() != known_tensor(copy).numpy().tobytes():
            raise NotRewritten(f"not proved: '{copy.name}' is not the transpose of '{table.name}'")
        if table.name not in weights:
            again = ir.Value(name=table.name, shape=table.shape, type=table.type)
            again.const_value = table.const_value
            add_constant(made.graph, again)
        turned = ir.node("Transpose", [weights[str(table.name)]], {"perm": _permutation(node)})
        turned.outputs[0].name = f"{copy.name}.turned"
        insert_before(made.graph[0], turned)
        redirect(copy, turned.outputs[0])
        drop_weight(copy)
    return made


def _reads_transposed(node: ir.Node) -> bool:
    """Whether a product reads a stored matrix transposed, by a node of its own or by itself."""
    kind = operator(node)
    if kind not in ("Transpose", _FUSED):
        return False
    table = node.inputs[0] if kind == "Transpose" else node.inputs[1]
    tensor = constant_tensor(table)
    if table is None or not table.is_initializer() or tensor is None or len(tensor.shape) != 2:
        return False
    if kind == _FUSED:
        plain = not any(node.attributes.get_int(name, 0) for name in _OTHER_TURNS)
        turns = node.attributes.get_int("transB", 0) == 1
        return plain and turns and node.attributes.get_float("alpha", 1.0) == 1.0
    result = node.outputs[0]
    products = all(use.node.op_type == "MatMul" and use.idx == 1 for use in result.uses())
    return products and not result.is_graph_output()


def _table(node: ir.Node) -> ir.Value:
    return known_operand(node, 0 if node.op_type == "Transpose" else 1)


def _turned(node: ir.Node) -> Array:
    array = known_tensor(_table(node)).numpy()
    return np.ascontiguousarray(array.transpose(_permutation(node)))


def _name_of(node: ir.Node) -> str:
    return f"{node.outputs[0].name}_stored"


def _permutation(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("perm", (1, 0)))
