"""Weights that products read transposed, stored transposed.

Before    table -> Gather,  table -> Transpose -> MatMul(x, .)
After     table -> Gather,  table^T -> MatMul(x, .)

Language models tie the token table to their head this way. Quantizers handle only stored weights
and skip such a product, which then dominates the time of a small model; the file has the table
twice, each in few bits.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import add_constant, drop_weight, insert_before, redirect, sweep
from onnxfold.graph.operands import known_tensor
from onnxfold.tuning.rewriting import NotRewritten


def untie(model: ir.Model) -> int:
    """Store every such weight a second time, in place, and return the count."""
    return sum(_stored(model.graph, node) for node in _transposes(model))


def tied_again(before: ir.Model, after: ir.Model) -> ir.Model:
    """Return a copy of ``after`` in which products read transposes of tables, as in ``before``.

    Raises NotRewritten if a stored weight is not the transpose of its table, bit by bit.
    """
    made = after.clone()
    weights = made.graph.initializers
    for node in _transposes(before):
        table, copy = node.inputs[0], weights.get(_name_of(node))
        if table is None or copy is None or copy.const_value is None:
            continue
        expected = _turned(node, table)
        if expected.tobytes() != copy.const_value.numpy().tobytes():
            raise NotRewritten(f"not proved: '{copy.name}' is not the transpose of '{table.name}'")
        turned = ir.node("Transpose", [weights[str(table.name)]], {"perm": _permutation(node)})
        turned.outputs[0].name = node.outputs[0].name
        insert_before(made.graph[0], turned)
        redirect(copy, turned.outputs[0])
        drop_weight(copy)
    return made


def _transposes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "Transpose" and node.domain == ""]


def _stored(graph: ir.Graph, transpose: ir.Node) -> bool:
    (source,), (result,) = transpose.inputs, transpose.outputs
    table = None if source is None or source.is_graph_input() else source.const_value
    if source is None or table is None or table.shape.rank() != 2 or result.is_graph_output():
        return False
    if not all(use.node.op_type == "MatMul" and use.idx == 1 for use in result.uses()):
        return False
    array, name = _turned(transpose, source), _name_of(transpose)
    weight = ir.Value(name=name, shape=ir.Shape(array.shape), type=source.type)
    weight.const_value = ir.tensor(array, dtype=table.dtype, name=name)
    add_constant(graph, weight)
    redirect(result, weight)
    sweep([transpose])
    return True


def _turned(transpose: ir.Node, table: ir.Value) -> Array:
    array = known_tensor(table).numpy()
    return np.ascontiguousarray(array.transpose(_permutation(transpose)))


def _name_of(transpose: ir.Node) -> str:
    return f"{transpose.outputs[0].name}_stored"


def _permutation(transpose: ir.Node) -> tuple[int, ...]:
    return tuple(transpose.attributes.get_ints("perm", (1, 0)))
