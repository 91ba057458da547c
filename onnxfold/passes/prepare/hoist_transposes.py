"""Transposes that an optimizer moved into a norm, moved back in front of it.

ONNX Runtime's transpose optimizer pushes Transpose through the reductions and the subtraction of
a decomposed norm, so that x - mean(x) is in one layout and its square in another.  With T a
Transpose and A the reduced axes, these identities are exact, element by element:

    T(reduce(x, A))          = reduce(T(x), T(A))          with keepdims
    T(x - reduce_mean(x, A)) = T(x) - reduce_mean(T(x), T(A))
    T(x * x)                 = T(x) * T(x)
    T(f(x, c))               = f(T(x), T(c))               f element by element, c a constant

tf2onnx writes a Reshape in the place of a Transpose that moves no element but between axes of size
1, as that of a mean does.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile

import numpy as np
import onnx_ir as ir

from onnxfold.graph import constant_tensor, keeps_dims, node_label, operator
from onnxfold.graph.edit import insert_before, redirect, replace_node, sweep
from onnxfold.graph.operands import computed_by
from onnxfold.graph.operands import operands as operands_of
from onnxfold.graph.traversal import all_graphs
from onnxfold.shapes.named_sizes import same_elements

# What a norm takes its statistics with; a Transpose behind another reduction is left alone.
_REDUCTIONS = frozenset(("ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"))
# What stands between the variance and the product with x.
_ELEMENTWISE = frozenset(("Add", "Div", "Max", "Mul", "Pow", "Reciprocal", "Sqrt"))
_Unique = Callable[[str], str]


def hoist_transposes(model: ir.Model, unique: _Unique) -> tuple[str, ...]:
    """Move such Transposes in front of the norm, in place; return the names of those moved."""
    names = []
    for graph in all_graphs(model):
        given = set(graph)
        waiting = list(graph)[::-1]
        while waiting:
            node = waiting.pop()
            label = node_label(node)
            if _replace_reshape(graph, node, unique):
                names.append(label)
                continue
            move = _move(graph, node, unique)
            if move is not None and _pull(move):
                names += [label] if node in given else []
                waiting += move.moved  # what it stands behind now may be part of the norm as well
    return tuple(dict.fromkeys(names))


def _move(graph: ir.Graph, node: ir.Node, unique: _Unique) -> "_Move | None":
    if node.op_type != "Transpose" or node.domain != "" or node.graph is None:
        return None
    order, value = node.attributes.get_ints("perm"), node.inputs[0]
    if order is None or value is None or not _private(value, node):
        return None
    inner = value.producer()
    if inner is None or inner.graph is not graph:
        return None
    return _Move(graph, node, inner, tuple(order), unique)


def _private(value: ir.Value, reader: ir.Node) -> bool:
    return not value.is_graph_output() and all(use.node is reader for use in value.uses())


class _Move:
    """One Transpose, the node in front of it, and the transposed operands made so far."""

    def __init__(
        self,
        graph: ir.Graph,
        transpose: ir.Node,
        inner: ir.Node,
        order: tuple[int, ...],
        unique: _Unique,
    ):
        self.graph = graph
        self.transpose = transpose
        self.inner = inner
        self.order = order
        self.unique = unique
        self.moved: list[ir.Node] = []

    def make(
        self,
        op_type: str,
        inputs: tuple[ir.Value | None, ...],
        attributes: dict[str, ir.Attr],
        like: ir.Node,
        name: str | None = None,
    ) -> ir.Value:
        """Insert a node in front of the inner one and return its output."""
        stem = name or f"{like.name or like.outputs[0].name}/transposed"
        made = ir.Node("", op_type, inputs, attributes.values(), name=self.unique(stem))
        made.metadata_props.update(like.metadata_props)
        made.outputs[0].name = self.unique(f"{stem}_output")
        made.outputs[0].type = like.outputs[0].type
        insert_before(self.inner, made)
        return made.outputs[0]

    def transposed(self, x: ir.Value) -> ir.Value:
        """Return T(x), taking the place of Transposes of x that come later."""
        twins = self.twins(x)
        if twins:
            before = set(takewhile(lambda node: node is not self.inner, self.graph))
            self.moved = [twin for twin in twins if twin in before][:1]
        if self.moved:
            return self.moved[0].outputs[0]
        attributes = {"perm": ir.AttrInt64s("perm", list(self.order))}
        result = self.make("Transpose", (x,), attributes, self.transpose, f"{x.name}/transposed")
        if x.shape is not None:
            result.shape = ir.Shape([x.shape[axis] for axis in self.order])
        self.moved = [node for node in (result.producer(),) if node is not None]
        for twin in twins:
            if not twin.outputs[0].is_graph_output():
                redirect(twin.outputs[0], result)
                sweep([twin])
        return result

    def twins(self, x: ir.Value) -> list[ir.Node]:
        """Return the Transposes of x in the same order, other than the one that moves."""
        return [
            node
            for node in dict.fromkeys(use.node for use in x.uses())
            if (node.domain, node.op_type) == ("", "Transpose")
            and node.graph is self.graph
            and tuple(node.attributes.get_ints("perm", ())) == self.order
        ]

    def reduction(self, node: ir.Node, x: ir.Value) -> ir.Value:
        """Return the same reduction of T(x), which is over constant, kept axes."""
        rank = len(self.order)
        places = [self.order.index(axis % rank) for axis in _axes(node) or ()]
        attributes = dict(node.attributes)
        inputs: tuple[ir.Value | None, ...] = (x,)
        if "axes" in attributes:
            attributes["axes"] = ir.AttrInt64s("axes", places)
        else:
            tensor = ir.tensor(np.asarray(places, dtype=np.int64))
            value = {"value": ir.AttrTensor("value", tensor)}
            inputs = (x, self.make("Constant", (), value, node, f"{node.name}/transposed_axes"))
            inputs[1].type = ir.TensorType(ir.DataType.INT64)
        return self.make(node.op_type, inputs, attributes, node)

    def elementwise(self) -> ir.Value:
        """Return what the inner node computes, of its transposed operands."""
        order = ir.AttrInt64s("perm", list(self.order))

        def turned(value: ir.Value) -> ir.Value:
            tensor, stem = constant_tensor(value), f"{value.name}/transposed"
            if tensor is None:
                return self.transposed(value)
            if tensor.size == 1:
                return value
            return self.make("Transpose", (value,), {"perm": order}, self.transpose, stem)

        operands = tuple(turned(value) for value in operands_of(self.inner))
        return self.make(self.inner.op_type, operands, {}, self.inner)

    def finish(self, result: ir.Value) -> None:
        """Let the result take the place of the Transpose's output."""
        replace_node(self.transpose, (), {0: result})


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return None if attribute.is_ref() else tuple(attribute.as_ints())
    tensor = constant_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if tensor is None else tuple(int(axis) for axis in tensor.numpy().reshape(-1))


def _pull(move: _Move) -> bool:
    inner = move.inner
    x = inner.inputs[0] if inner.inputs else None
    if x is None or inner.domain != "":
        return False
    if inner.op_type in _REDUCTIONS and _reducible(inner):
        move.finish(move.reduction(inner, move.transposed(x)))
        sweep([inner])
        return True
    if inner.op_type == "Mul" and inner.inputs[1] is x:
        if not move.twins(x) and not _centred(move, x):
            return False  # no norm: the Transpose would only move
        wide = move.transposed(x)
        move.finish(move.make("Mul", (wide, wide), {}, inner))
        sweep([inner])
        return True
    if inner.op_type in _ELEMENTWISE and _scales(move):
        move.finish(move.elementwise())
        sweep([inner])
        return True
    mean = computed_by(inner.inputs[1], "ReduceMean") if inner.op_type == "Sub" else None
    if mean is None or mean.inputs[0] is not x:
        return False
    if mean.graph is not move.graph or not _reducible(mean):
        return False
    wide = move.transposed(x)
    move.finish(move.make("Sub", (wide, move.reduction(mean, wide)), {}, inner))
    sweep([inner])
    sweep([mean])
    return True


def _reducible(node: ir.Node) -> bool:
    return bool(_axes(node)) and keeps_dims(node)


def _centred(move: _Move, value: ir.Value | None) -> bool:
    """Whether a value is x - mean(x), of an x that is transposed in this order too."""
    node = computed_by(value, "Sub")
    mean = None if node is None else computed_by(node.inputs[1], "ReduceMean")
    x = None if node is None else node.inputs[0]
    if x is None or mean is None or mean.inputs[0] is not x:
        return False
    return _reducible(mean) and bool(move.twins(x))


def _scales(move: _Move) -> bool:
    """Whether the inner node makes what x is scaled by, of the mean square of x - mean(x)."""
    node: ir.Node | None = move.inner
    while node is not None and node.domain == "" and node.op_type in _ELEMENTWISE:
        computed = [value for value in operands_of(node) if constant_tensor(value) is None]
        if len(computed) != 1 or not _transposable(node, len(move.order)):
            return False
        node = computed[0].producer()
    if node is None or operator(node) != "ReduceMean" or not _reducible(node):
        return False
    square = computed_by(node.inputs[0], "Mul")
    if square is None or square.inputs[0] is not square.inputs[1]:
        return False
    return _centred(move, square.inputs[0])


def _transposable(node: ir.Node, rank: int) -> bool:
    tensors = [constant_tensor(value) for value in operands_of(node)]
    return all(each is None or each.size == 1 or len(each.shape) == rank for each in tensors)


def _replace_reshape(graph: ir.Graph, node: ir.Node, unique: _Unique) -> bool:
    """Take the mean of T(x) in the place of a Reshape that makes T(mean(x)) of mean(x)."""
    mean = computed_by(node.inputs[0], "ReduceMean") if operator(node) == "Reshape" else None
    if mean is None or mean.graph is not graph or not _reducible(mean):
        return False
    x = mean.inputs[0]
    if x is None:
        return False
    for order, wide in list(_other_layouts(x, graph)):
        if _moves_ones(node, mean, x, order):
            move = _Move(graph, node, mean, order, unique)
            move.finish(move.reduction(mean, wide or move.transposed(x)))
            sweep([mean])
            return True
    return False


def _other_layouts(
    x: ir.Value, graph: ir.Graph
) -> Iterator[tuple[tuple[int, ...], ir.Value | None]]:
    """Yield the orders in which the graph holds x too, and what was transposed to x."""
    made = computed_by(x, "Transpose")
    order = None if made is None else made.attributes.get_ints("perm")
    if made is not None and order is not None:
        yield tuple(int(place) for place in np.argsort(order)), made.inputs[0]
    for use in x.uses():
        order = use.node.attributes.get_ints("perm")
        if use.node.op_identifier() == ("", "Transpose", "") and use.node.graph is graph and order:
            yield tuple(order), None


def _moves_ones(node: ir.Node, mean: ir.Node, x: ir.Value, order: tuple[int, ...]) -> bool:
    """Whether the Reshape of a mean gives what a Transpose of it in this order would give."""
    shape, target = x.shape, constant_tensor(node.inputs[1])
    if shape is None or target is None or not len(shape) == len(order) == target.size:
        return False
    reduced = {axis % len(order) for axis in _axes(mean) or ()}
    kept = [axis for axis in order if axis not in reduced]
    sizes = (1 if axis in reduced else shape[axis] for axis in order)
    given = tuple(size if isinstance(size, int) else str(size) for size in sizes)
    asked = tuple("" if size == -1 else size for size in target.numpy().tolist())
    return kept == sorted(kept) and same_elements(asked, given)
