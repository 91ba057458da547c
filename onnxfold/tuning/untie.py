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

from onnxfold.graph.edit import add_constant, redirect, sweep


def untie(model: ir.Model) -> int:
    """Store every such weight a second time, in place, and return the count."""
    nodes = [node for node in model.graph if node.op_type == "Transpose" and node.domain == ""]
    return sum(_stored(model.graph, node) for node in nodes)


def _stored(graph: ir.Graph, transpose: ir.Node) -> bool:
    (source,), (result,) = transpose.inputs, transpose.outputs
    table = None if source is None or source.is_graph_input() else source.const_value
    if table is None or table.shape.rank() != 2 or result.is_graph_output():
        return False
    if not all(use.node.op_type == "MatMul" and use.idx == 1 for use in result.uses()):
        return False
    array = np.ascontiguousarray(table.numpy().transpose(_permutation(transpose)))
    name = f"{result.name}_stored"
    weight = ir.Value(name=name, shape=ir.Shape(array.shape), type=source.type if source else None)
    weight.const_value = ir.tensor(array, dtype=table.dtype, name=name)
    add_constant(graph, weight)
    redirect(result, weight)
    sweep([transpose])
    return True


def _permutation(transpose: ir.Node) -> tuple[int, ...]:
    return tuple(transpose.attributes.get_ints("perm", (1, 0)))
