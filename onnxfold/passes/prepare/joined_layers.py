"""Linear layers of one input whose results are joined along what a norm normalizes: one layer.

    [x W + b, x V + c] = x [W V] + [b c]

The mean of a row of the result is that of all pieces, x (W 1 + V 1) / d, which only a weight that
has all channels can lose. Pieces of different inputs stay: x W 1 + z V 1 is in neither weight.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, operator
from onnxfold.graph.edit import add_constant, drop_weight, inherit, redirect, set_input, sweep
from onnxfold.graph.equality import same_attributes
from onnxfold.graph.operands import (
    is_read_once,
    known_operand,
    known_tensor,
    operand,
    producer_of,
    weight_operand,
)
from onnxfold.operators.families.maps import IndexMap, map_of
from onnxfold.operators.row import Layer
from onnxfold.operators.table import row_of
from onnxfold.passes.split_skip_norms import Builder
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.obstacles import ENDS

_LAYERS = (Layer.CONVOLUTION, Layer.GEMM, Layer.MATMUL)
_WEIGHT = 1


@dataclass(frozen=True, slots=True)
class _Piece:
    """A layer, the axis of its weight that is joined, and the Add of its bias where it has none."""

    layer: ir.Node
    axis: int
    addition: ir.Node | None = None

    @property
    def biased(self) -> tuple[ir.Node, int] | None:
        """The operand that is added to the product."""
        if self.addition is not None:
            summand = 1 - list(self.addition.inputs).index(self.layer.outputs[0])
            return self.addition, summand
        index = row_of(self.layer).bias
        return None if index is None else (self.layer, index)

    @property
    def bias(self) -> ir.Value | None:
        """The bias, if there is one."""
        place = self.biased
        return None if place is None else operand(*place)


def join_layers(view: ModelInfo, allow_split: int) -> int:
    """Join such layers in a typed working copy where a norm wants it; return how many results.

    A weight with other readers is stored twice if it has at most ``allow_split`` bytes.
    """
    found = {node: made for node in view.nodes() if (made := _pieces(view, node, allow_split))}
    ends = ENDS.of(view) if found else {}
    chosen = [node for node in found if _is_in_the_way(ends.get(node.outputs[0], ()))]
    builder = Builder(view.model)
    for node in chosen:
        _join(builder, node, found[node])
    return len(chosen)


def _is_in_the_way(why: Iterable[Refusal]) -> bool:
    return any(each.code is RefusalCode.CONCAT_ALONG_FIBER for each in why)


def _pieces(view: ModelInfo, node: ir.Node, allow_split: int) -> list[_Piece]:
    """Return the layers whose results a Concat joins, if they can be one; otherwise nothing."""
    rank = view.rank(node.outputs[0]) if operator(node) == "Concat" else None
    if rank is None or len(node.inputs) < 2:
        return []
    axis = node.attributes.get_int("axis", 1) % rank
    made = [_piece(view, value, axis) for value in node.inputs]
    pieces = [piece for piece in made if piece is not None]
    alike = len(pieces) == len(made) and all(_alike(pieces[0], other) for other in pieces[1:])
    return pieces if alike and all(_is_free(piece, allow_split) for piece in pieces) else []


def _is_free(piece: _Piece, allow_split: int) -> bool:
    """Whether no other node reads a weight, or a copy of it is allowed."""
    weight = known_operand(piece.layer, _WEIGHT)
    return is_read_once(weight) or known_tensor(weight).nbytes <= allow_split


def _piece(view: ModelInfo, value: ir.Value | None, axis: int) -> _Piece | None:
    node = producer_of(value)
    if value is None or node is None or not is_read_once(value):
        return None
    index = weight_operand(view, node, "Add")
    if index is None:
        return _layer(view, node, axis, None)
    layer = producer_of(node.inputs[1 - index])
    alone = layer is not None and is_read_once(layer.outputs[0]) and row_of(layer).bias is None
    return _layer(view, layer, axis, node) if layer is not None and alone else None


def _layer(view: ModelInfo, layer: ir.Node, axis: int, addition: ir.Node | None) -> _Piece | None:
    known = map_of(view, layer) if not layer.domain and row_of(layer).layer in _LAYERS else None
    weight = operand(layer, _WEIGHT)
    tensor = view.tensor(weight)
    if not isinstance(known, IndexMap) or known.sizes or weight is None or tensor is None:
        return None
    places = [at for at, names in enumerate(known.factors[_WEIGHT]) if names == known.output[axis]]
    if len(places) != 1 or tensor.dtype not in FLOATS:
        return None
    piece = _Piece(layer, places[0], addition)
    size = tensor.shape.numpy()[places[0]]
    bias = view.tensor(piece.bias)
    if piece.bias is not None and (bias is None or tuple(bias.shape.numpy()) != (size,)):
        return None
    return piece if axis == _last_of(view, layer) or addition is None else None


def _last_of(view: ModelInfo, layer: ir.Node) -> int:
    return (view.rank(layer.outputs[0]) or 0) - 1


def _alike(a: _Piece, b: _Piece) -> bool:
    """Whether two layers differ in their channels alone."""
    shapes = [list(_weight(piece).shape.numpy()) for piece in (a, b)]
    for shape, piece in zip(shapes, (a, b), strict=True):
        del shape[piece.axis]
    return (
        a.layer.op_type == b.layer.op_type
        and a.layer.graph is b.layer.graph
        and a.layer.inputs[0] is b.layer.inputs[0]
        and a.axis == b.axis
        and same_attributes(a.layer, b.layer)
        and _weight(a).dtype == _weight(b).dtype
        and shapes[0] == shapes[1]
    )


def _weight(piece: _Piece) -> ir.TensorProtocol:
    return known_tensor(known_operand(piece.layer, _WEIGHT))


def _join(builder: Builder, node: ir.Node, pieces: Sequence[_Piece]) -> None:
    """Let one layer compute all channels, with a bias if any has one; remove the others."""
    added = [piece for piece in pieces if piece.addition is not None]
    first, end = (added or pieces)[0], node.outputs[0]
    weights = [_weight(piece) for piece in pieces]
    biases = [piece.bias for piece in pieces]
    old = known_operand(first.layer, _WEIGHT), first.bias
    joined = _stored(builder, f"{end.name}.weight", weights, first.axis)
    _put(old[0].graph, first.layer, _WEIGHT, joined)
    if first.biased is not None and any(bias is not None for bias in biases):
        sizes = [weight.shape.numpy()[first.axis] for weight in weights]
        summands = [
            _zeros(size, weights[0].dtype) if bias is None else known_tensor(bias)
            for bias, size in zip(biases, sizes, strict=True)
        ]
        _put(old[0].graph, *first.biased, _stored(builder, f"{end.name}.bias", summands, 0))
    result = first.layer.outputs[0]
    if first.addition is not None:
        result.shape = end.shape
        result = first.addition.outputs[0]
    redirect(end, result, outputs=True)
    inherit(end, result)
    others = [piece for piece in pieces if piece is not first]
    additions = [piece.addition for piece in others if piece.addition is not None]
    sweep([*(piece.layer for piece in others), *additions, node])
    for value in old:
        drop_weight(value)


def _put(graph: ir.Graph | ir.Function | None, node: ir.Node, index: int, value: ir.Value) -> None:
    home = graph if isinstance(graph, ir.Graph) else node.graph
    if isinstance(home, ir.Graph):
        add_constant(home, value)
    set_input(node, index, value)


def _zeros(size: int, dtype: ir.DataType) -> ir.TensorProtocol:
    return ir.Tensor(np.zeros(size, dtype.numpy()), dtype=dtype)


def _stored(builder: Builder, name: str, parts: Sequence[ir.TensorProtocol], axis: int) -> ir.Value:
    """Return a weight of several, joined when it is read."""
    dims = list(parts[0].shape.numpy())
    dims[axis] = sum(part.shape.numpy()[axis] for part in parts)
    shape, dtype, name = ir.Shape(dims), parts[0].dtype, builder.unique(name)

    def joined() -> ir.TensorProtocol:
        array = np.concatenate([part.numpy() for part in parts], axis)
        return ir.Tensor(array, dtype=dtype, name=name)

    lazy = ir.LazyTensor(joined, dtype=dtype, shape=shape, name=name)
    return ir.Value(name=name, shape=shape, type=ir.TensorType(dtype), const_value=lazy)
