"""Values read where they come from: through Identity, unbound sequences and whole Gathers.

Exporters name a value twice, or share a weight, by Identity.  Paddle2ONNX puts one behind most
operators, and TorchScript gives the second user of a weight one, which a loop around that user
leaves outside.  TorchScript runs recurrent layers, as a stacked LSTM with LayerNorm, over the
elements of a sequence, of which no operator behind it has a shape: SequenceAt(unbind(x), i) = x[i].
tf2onnx gives the loops of Keras' LSTM and GRU their weights as states, whose next value is their
value at every step.

dynamo writes these for as_strided, the end of its average pooling, for example before the last norm
of torchvision's ConvNeXt: of [N, C, 1, 1] with the indices n C + c, a constant where N is known,
otherwise the sum of one along C and of n C computed.
"""

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.graph import constant_tensor, node_label, operator
from onnxfold.graph.edit import drop_states, set_input, sweep
from onnxfold.graph.operands import computed_by, known_operand, operand, operands
from onnxfold.graph.sequences import behind_unbind, is_unbind
from onnxfold.graph.traversal import all_graphs, all_nodes, graph_values, reached
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


_MOST_TERMS = 8  # of indices: torch writes one for each axis


_Whole = tuple[ir.Node, tuple[int, ...]]
"""The Reshape that flattens a tensor, and its new shape, with -1 for an unknown size."""


def reshape_whole(model: ir.Model) -> tuple[str, ...]:
    """Replace such Gathers, in place, if the shape of their operand is known.

    Return their names.
    """
    gathers = {node: whole for node in all_nodes(model) if (whole := _whole(node)) is not None}
    before = _before(model, gathers)
    builder = Builder(model)
    for node, (flat, sizes) in gathers.items():
        call = builder.at(node)
        (shape,) = call.emit("Constant", (), value=ir.tensor(sizes, dtype=ir.DataType.INT64))
        (reshaped,) = call.emit("Reshape", (flat.inputs[0], shape))
        call.finish({0: reshaped})
    sweep(before)
    return tuple(map(node_label, gathers))


def _before(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return what nodes need, in the order of the model, so that a sweep starts at the end."""

    def makers(node: ir.Node) -> list[ir.Node]:
        return [maker for value in operands(node) if (maker := value.producer()) is not None]

    needed = set(reached(nodes, makers))
    return [node for node in all_nodes(model) if node in needed] if needed else []


def _whole(node: ir.Node) -> _Whole | None:
    """Return the Reshape to a vector whose elements a node picks in order, or None."""
    if node.op_type != "Gather" or node.domain or node.attributes.get_int("axis", 0) != 0:
        return None
    flat, indices = computed_by(node.inputs[0], "Reshape"), known_operand(node, 1)
    vector = None if flat is None else flat.outputs[0].shape
    if flat is None or vector is None or len(vector) != 1:
        return None
    constant = constant_tensor(indices)
    if constant is None:
        return _of_open_rows(flat, indices)
    sizes = tuple(constant.shape.numpy())
    whole = 0 < constant.size == vector[0] and _counts((constant,), sizes)
    return (flat, sizes) if whole else None


def _of_open_rows(flat: ir.Node, indices: ir.Value) -> _Whole | None:
    """Return the Reshape whose rows, as many as the indices' rows, are read one by one, or None."""
    given = None if flat.inputs[0] is None else flat.inputs[0].shape
    if given is None or indices.shape is None or not _has_open_rows(given, indices.shape):
        return None
    sizes = tuple(size for size in indices.shape[1:] if isinstance(size, int))
    length = prod(sizes)
    terms = _terms(indices)
    rows = [term for term in terms if _counts_rows(term, length)]
    constants = [constant for term in terms if (constant := constant_tensor(term)) is not None]
    sums = len(rows) == 1 and len(constants) == len(terms) - 1
    return (flat, (-1, *sizes)) if sums and _counts(constants, (1, *sizes)) else None


def _has_open_rows(given: ir.Shape, picked: ir.Shape) -> bool:
    """Whether both shapes start with the same named size, and have rows of equal size."""
    first, second = given.dims[:1], picked.dims[:1]
    named = first == second != () and isinstance(first[0], ir.SymbolicDim) and first[0].value
    rows = [[size for size in shape.dims[1:] if isinstance(size, int)] for shape in (given, picked)]
    static = [len(row) for row in rows] == [len(given) - 1, len(picked) - 1]
    return bool(named) and static and prod(rows[0]) == prod(rows[1]) > 0


def _terms(value: ir.Value) -> list[ir.Value]:
    """Return the terms of a value that is a sum, or nothing if there are many."""
    terms: list[ir.Value] = []
    waiting = [value]
    while waiting and len(terms) + len(waiting) <= _MOST_TERMS:
        term = waiting.pop()
        total = computed_by(term, "Add")
        if total is None:
            terms.append(term)
        else:
            waiting += operands(total)
    return [] if waiting else terms


def _counts_rows(value: ir.Value, step: int) -> bool:
    """Whether a value is 0, step, 2 step and so on along its only nontrivial axis, the first."""
    spread = computed_by(value, "Unsqueeze")
    scaled = computed_by(None if spread is None else spread.inputs[0], "Mul")
    if scaled is None or value.shape is None or any(size != 1 for size in value.shape[1:]):
        return False
    for count, factor in (scaled.inputs, reversed(scaled.inputs)):
        numbers = computed_by(count, "Range")
        if numbers is not None and _is(factor, step):
            return _is(operand(numbers, 0), 0) and _is(operand(numbers, 2), 1)
    return False


def _is(value: ir.Value | None, number: int) -> bool:
    constant = None if value is None else constant_tensor(value)
    return constant is not None and constant.size == 1 and bool(constant.numpy() == number)


def _counts(terms: Sequence[ir.TensorProtocol], sizes: tuple[int, ...]) -> bool:
    """Whether the sum of constants has these sizes and the elements 0, 1, 2 and so on."""
    total = sum((term.numpy() for term in terms), np.zeros((), np.int64))
    return np.array_equal(total, np.arange(prod(sizes)).reshape(sizes))
