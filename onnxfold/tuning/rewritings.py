"""Rewritings of our own before other tools, each proved: it computes what the model did.

Products of flattened rows become products of unflattened rows:

    x [B, T, K] -> Reshape [B*T, K] -> Gemm(., W, b) -> Reshape [B, T, N] -> y
    x [B, T, K] -> MatMul(., W) -> Add(., b) -> y

PyTorch's addmm, in every Conv1D of GPT-2, exports as the former. onnxscript's fusions remove the
Reshapes and leave a Gemm of three axes, which no session loads; runtimes fuse attention, biases and
residual additions around the latter.

Weights that products read transposed are stored transposed:

    table -> Gather,  table -> Transpose -> MatMul(x, .)  or  FusedMatMul(x, table, transB)
    table -> Gather,  table^T -> MatMul(x, .)

Language models tie the token table to their head this way, as fusions write it. Quantizers handle
only stored weights of MatMul and skip such a product, which then dominates the time of a small
model; the file has a shared table twice, each in few bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.errors import OnnxfoldError
from onnxfold.graph import FLOATS, operator
from onnxfold.graph.constants import Array, constant_tensor
from onnxfold.graph.edit import (
    add_constant,
    drop_weight,
    insert_before,
    make_input,
    redirect,
    replace_node,
    sweep,
)
from onnxfold.graph.operands import known_operand, known_tensor
from onnxfold.proof import Certificate, prove
from onnxfold.shapes import infer

_LEAST_WEIGHT = 16  # elements
Rewriting: TypeAlias = Callable[[ir.Model], int]  # in place; how many places it changed
Undoing: TypeAlias = Callable[[ir.Model, ir.Model], ir.Model]
Shapes = dict[str, ir.Shape | None]
_FUSED = "com.microsoft.FusedMatMul"
_OTHER_TURNS = ("transA", "transBatchA", "transBatchB")


class NotRewritten(OnnxfoldError):  # noqa: N818
    """A model stays as it is; the message says why."""


def proved(before: ir.Model, after: ir.Model, computed: Collection[str] = ()) -> str | None:
    """Run both models part by part on random numbers; return what is not equal, None: nothing.

    A rewriting gives no hints to the proof (`onnxfold.proof`), which finds by itself what to
    compare. Weights that both store are random too: equality for any weights includes these, and
    equal layers are tested once. ``computed``: values that no test may draw, such as masks: no
    random number is infinite.
    """
    models = [model.clone() for model in (before, after)]
    stored = [model.graph.initializers for model in models]
    both = stored[0].keys() & stored[1].keys()
    for name in [name for name in stored[0] if name in both]:
        twins = [weights[name] for weights in stored]
        if twins[0].const_value is twins[1].const_value and _is_weight(twins[0]):
            for weight in twins:
                make_input(weight)
    for value in (value for node in models[1].graph for value in node.outputs):
        if value.name in computed and not value.is_graph_output():
            value.name = f"{value.name}.computed"  # no counterpart in the original
    old, new = map(infer, models)
    shown = prove(old, new, Certificate(by_name_alone=True))
    return None if shown.passed else shown.failures[0]


def _is_weight(value: ir.Value) -> bool:
    """Whether a tensor holds more than a number or two for a formula."""
    sizes = () if value.shape is None else value.shape.numpy()
    return value.dtype in FLOATS and prod(sizes) >= _LEAST_WEIGHT


def rewritten(model: ir.Model, rewriting: Rewriting, undone: Undoing | None = None) -> ir.Model:
    """Return the result of a rewriting of a model, which is not changed; raises NotRewritten.

    ``undone`` checks what no proof compares, such as stored copies, and reverts it.
    """
    made = model.clone()
    if not rewriting(made):
        return model
    if failure := proved(model, made if undone is None else undone(model, made)):
        raise NotRewritten(f"not proved: {failure}")
    return made


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
