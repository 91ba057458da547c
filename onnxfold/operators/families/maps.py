"""Indexing maps of linear layers: one label for each index that runs over an axis, as in Einsum.

    MatMul   [b0 m k] [b0 k n] -> [b0 m n]        Gemm   [m k] [k n] [n] -> [m n]
    Conv     [n gc x2] [gm c w2] [gm] -> [n gm o2], with an axis that has two digits, g and m

A label that the output lacks is summed over.  What follows from a map alone: in which operand the
indices of an output are, where those of an operand are in another operand or in the output, and
what does not vary along them.  An axis of one element that broadcasts has no label.  A size that
may be 1 or more has a label of its own, which matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Dim, Fiber, ModelInfo, Shape, follow_reshape
from onnxfold.graph.einsum import einsum_labels
from onnxfold.operators.row import Family, Layer
from onnxfold.operators.table import row_of

Axis = tuple[str, ...]  # labels, most significant first
Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Labels of the axes of every factor, of the bias (None: without one), and of the output.

    ``sizes``: of the labels that share an axis.  ``bias_input``: which input is the bias.
    """

    factors: tuple[Axes, ...]
    output: Axes
    bias: Axes | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    bias_input: int = 2

    def operand(self, index: int) -> Axes:
        """Return the axes of a factor, or of the bias; none of any other input."""
        if index < len(self.factors):
            return self.factors[index]
        return (self.bias or ()) if index == self.bias_input else ()

    def labels(self, blocks: Iterable[AxisBlock], axes: Axes) -> frozenset[str] | None:
        """Return the labels that blocks run over, None where one has no digit of its own."""
        digits = [self._digits(block, axes) for block in blocks]
        if None in digits:
            return None
        return frozenset(label for each in digits if each for label, _ in each)

    def image(self, blocks: Iterable[AxisBlock], old: Axes, new: Axes) -> list[AxisBlock] | None:
        """Return where the indices of blocks are in another operand, None where it lacks one."""
        placed: list[AxisBlock] = []
        for block in blocks:
            digits = self._digits(block, old)
            for label, digit in digits or ():
                found = self._place(label, digit, new)
                if found is None:
                    return None
                placed += found
            if digits is None:
                return None
        return placed

    def _digits(self, block: AxisBlock, axes: Axes) -> list[tuple[str, AxisBlock]] | None:
        """Return the labels of a block, each with the part of its index that the block is."""
        labels = axes[block.axis] if block.axis < len(axes) else ()
        if len(labels) == 1:
            return [(labels[0], block)]
        sizes = tuple(self.sizes[label] for label in labels)
        alone = Fiber((AxisBlock(0, block.inner, block.size, block.outer),))
        split = follow_reshape(alone, (prod(sizes),), sizes) if sizes else None
        return None if split is None else [(labels[b.axis], b) for b in split.blocks]

    def _place(self, label: str, digit: AxisBlock, axes: Axes) -> list[AxisBlock] | None:
        axis = next((number for number, labels in enumerate(axes) if label in labels), None)
        if axis is None:
            return None
        labels = axes[axis]
        if len(labels) == 1:
            return [AxisBlock(axis, digit.inner, digit.size, digit.outer)]
        sizes = tuple(self.sizes[each] for each in labels)
        inside = AxisBlock(labels.index(label), digit.inner, digit.size, digit.outer)
        whole = follow_reshape(Fiber((inside,)), sizes, (prod(sizes),))
        if whole is None:
            return None
        return [AxisBlock(axis, b.inner, b.size, b.outer) for b in whole.blocks]


def weight_shape(view: ModelInfo, node: ir.Node, index: int) -> Shape | None:
    """Return the shape of a factor as its map has it: of the matrix that blocks of codes hold."""
    if row_of(node).layer is Layer.MATMUL_BLOCKS and index == 1:
        return node.attributes.get_int("N", 0), node.attributes.get_int("K", 0)
    return view.shape(node.inputs[index])


def varies(axes: Axes, labels: frozenset[str]) -> bool:
    """Whether an operand varies along one of some labels, or may do so."""
    return any(label in labels or label.removesuffix("?") in labels for label in chain(*axes))


def may_broadcast(axes: Axes, labels: frozenset[str]) -> bool:
    """Whether an operand has a size along one of some labels that may be 1."""
    return any(label.endswith("?") and label[:-1] in labels for label in chain(*axes))


def map_of(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """Return the map of a linear layer, None where ranks, sizes or an equation are not known."""
    row = row_of(node)
    rule = _MAPS.get(row.family) or _MAPS.get(row.layer)
    return None if rule is None else rule(view, node)


def _shapes(view: ModelInfo, node: ir.Node, count: int) -> list[Shape] | None:
    found = [view.shape(value) for value in node.inputs[:count]]
    known = [shape for shape in found if shape is not None]
    return known if len(known) == count else None


def _aligned(shape: Sequence[Dim], result: Sequence[Dim], names: Sequence[str]) -> Axes:
    """Return the labels of an operand that broadcasts to a result of these labels."""
    offset = len(result) - len(shape)
    return tuple(
        _broadcast(dim, result[offset + axis], names[offset + axis])
        for axis, dim in enumerate(shape)
    )


def _broadcast(dim: Dim, result: Dim, name: str) -> Axis:
    if dim is not None and dim == result:
        return (name,)
    return () if dim == 1 else (f"{name}?",)


def _matmul(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """A B, of matrices in batches or of a vector; FusedMatMul transposes either."""
    shapes = _shapes(view, node, 2)
    turned = [node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")]
    batches = any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB"))
    if shapes is None or batches or not all(shapes):
        return None
    vectors = [len(shape) == 1 for shape in shapes]
    if node.domain and any(vectors):
        return None
    rows, columns = (() if vectors[0] else ("m",)), (() if vectors[1] else ("n",))
    inner = (*rows, "k"), ("k", *columns)
    leading = [shape[: len(shape) - len(own)] for shape, own in zip(shapes, inner, strict=True)]
    batch = _broadcast_shape(*leading)
    names = [f"b{axis}" for axis in range(len(batch))]
    factors = tuple(
        (*_aligned(shape, batch, names), *((name,) for name in own[:: -1 if turn else 1]))
        for shape, own, turn in zip(leading, inner, turned, strict=True)
    )
    return IndexMap(factors, tuple((name,) for name in (*names, *rows, *columns)))


def _broadcast_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape that two broadcast to, with None for sizes that are not known to agree."""
    rank = max(len(a), len(b))
    padded = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    return tuple(_broadcast_size({x, y} - {1}) for x, y in zip(*padded, strict=True))


def _broadcast_size(sizes: set[Dim]) -> Dim:
    fixed = {size for size in sizes if isinstance(size, int)} or sizes
    return fixed.pop() if len(fixed) == 1 else None if fixed else 1


def _gemm(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """A' B' + C, C broadcast."""
    step = [-1 if node.attributes.get_int(name, 0) else 1 for name in ("transA", "transB")]
    factors = (
        (("m",), ("k",))[:: step[0]],
        (("k",), ("n",))[:: step[1]],
    )
    given = node.inputs[2] if len(node.inputs) > 2 else None
    y, c = view.shape(node.outputs[0]), view.shape(given)
    if given is not None and (y is None or c is None):
        return None
    bias = None if given is None or c is None or y is None else _aligned(c, y, ("m", "n"))
    return IndexMap(factors, (("m",), ("n",)), bias)


def _convolution(view: ModelInfo, node: ir.Node, *, turned: bool = False) -> IndexMap | None:
    """Conv, W [out, in / groups, ..]; ConvTranspose, W [in, out / groups, ..] (``turned``)."""
    w = view.shape(node.inputs[1]) if len(node.inputs) > 1 else None
    groups = node.attributes.get_int("group", 1)
    if w is None or len(w) < 2:
        return None
    plain: tuple[Axis, Axis] = ("c",), ("m",)
    sizes: dict[str, int] = {}
    inside, out = plain
    if groups != 1:
        first, second = w[:2]
        if not isinstance(first, int) or not isinstance(second, int) or first % groups:
            return None
        inside, out = ("g", "c"), ("g", "m")
        names = ("c", "m") if turned else ("m", "c")
        sizes = {"g": groups, names[0]: first // groups, names[1]: second}
    spatial = range(2, len(w))
    x, taps, y = (tuple((f"{letter}{axis}",) for axis in spatial) for letter in "xwy")
    weight = (inside, plain[1]) if turned else (out, plain[0])
    bias = (out,) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    return IndexMap(((("b",), inside, *x), (*weight, *taps)), (("b",), out, *y), bias, sizes)


def _einsum(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """An explicit equation, in which a factor has each label once."""
    terms = einsum_labels(node, [view.rank(factor) for factor in node.inputs])
    if terms is None or any(len(set(factor)) < len(factor) for factor in terms[0]):
        return None
    return IndexMap(
        tuple(tuple((label,) for label in factor) for factor in terms[0]),
        tuple((label,) for label in terms[1]),
    )


def _attention(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """Attention of com.microsoft: x W + b, of which heads are made: no index of W stays."""
    del view, node
    return IndexMap(
        ((("b",), ("t",), ("k",)), (("k",), ("n",))), (("b",), ("t",), ("v",)), (("n",),)
    )


def _blocks(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """A B' + c of com.microsoft: B as the matrix [n k] that its blocks of few bits hold."""
    rank = view.rank(node.inputs[0])
    if not rank:
        return None
    rows = tuple((f"m{axis}",) for axis in range(rank - 1))
    bias = (("n",),) if len(node.inputs) > 5 and node.inputs[5] is not None else None
    return IndexMap(((*rows, ("k",)), (("n",), ("k",))), (*rows, ("n",)), bias, bias_input=5)


def _recurrent(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """RNN, GRU and LSTM: x W' + Wb for each direction and gate.

    The bias is Wb, be it there or not: the first half of each row of B.
    """
    del view
    batch_first = node.attributes.get_int("layout", 0) != 0
    x, y = ("b", "t", "k") if batch_first else ("t", "b", "k"), ("t", "d", "b", "h")
    w: Axes = (("d",), ("g",), ("k",))
    factors = tuple((label,) for label in x), w
    return IndexMap(factors, tuple((label,) for label in y), w[:2], bias_input=3)


_Rule = Callable[[ModelInfo, ir.Node], IndexMap | None]
_MAPS: Mapping[Family | Layer | None, _Rule] = {
    Family.CONVOLUTION: _convolution,
    Family.EINSUM: _einsum,
    Family.GEMM: _gemm,
    Family.MATMUL: _matmul,
    Family.MATMUL_FUSED: _matmul,
    Family.MATMUL_BLOCKS: _blocks,
    Family.TRANSPOSED_CONVOLUTION: lambda view, node: _convolution(view, node, turned=True),
    Layer.CONVOLUTION: _convolution,
    Layer.GEMM: _gemm,
    Layer.PACKED_ATTENTION: _attention,
    Layer.RECURRENT: _recurrent,
}
