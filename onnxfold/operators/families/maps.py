"""Indexing maps of linear operators: one label for each index that runs over an axis, as in Einsum.

    MatMul     [b0 m k] [b0 k n] -> [b0 m n]      Gemm   [m k] [k n] [n] -> [m n]
    Conv       [n gc x2] [gm c w2] [gm] -> [n gm o2], with an axis that has two digits, g and m
    Add, Mul   [o0 o1] [ o1 ] -> [o0 o1]          Transpose   [o1 o0] -> [o0 o1]
    Concat     [o0 o1!] [o0 o1!] -> [o0 o1!]      ReduceMean  [o0 _] -> [o0 _]

A label that the output lacks is summed over. The map alone determines which operand has the indices
of an output, where indices of an operand are in another operand or in the output, and what does not
vary along them (linear.py). A broadcast axis of one element is not labeled, nor one whose indices
are lost or new. A size that may be 1 gets a unique label ("?"), which matches nothing. Along "!" an
operator works: it joins, adds up, repeats or picks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Dim, Fiber, ModelInfo, Shape, follow_reshape
from onnxfold.graph.operands import einsum_labels, operand
from onnxfold.operators.families import layout, reduce
from onnxfold.operators.families.parts import sliced_axes
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.row import Family, Layer
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

Axis = tuple[str, ...]  # labels, most significant first
Axes = tuple[Axis, ...]
_EXPERT: Axis = ("e",)


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Labels of the axes of every operand, of the bias (None: without one), and of the output.

    ``sizes``: of the labels of a split axis.
    """

    factors: tuple[Axes, ...]
    output: Axes
    bias: Axes | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def operand(self, index: int) -> Axes:
        """Return the axes of a factor, or of the bias, which is the input after all factors."""
        return self.factors[index] if index < len(self.factors) else self.bias or ()

    def labels(self, blocks: Iterable[AxisBlock], axes: Axes) -> frozenset[str] | None:
        """Return the labels of blocks, or None if a block is not made of whole digits."""
        digits = [self._digits(block, axes) for block in blocks]
        if None in digits:
            return None
        return frozenset(label for each in digits if each for label, _ in each)

    def image(self, fiber: Fiber, old: Axes, new: Axes, *, partly: bool = False) -> Fiber | None:
        """Return the positions of a fiber's indices in another operand.

        None if it lacks one, unless ``partly``.
        """
        digits = [self._digits(block, old) for block in fiber.blocks]
        held = {*chain(*new)}
        if None in digits:
            return None
        wanted = [pair for each in digits for pair in each or () if not partly or pair[0] in held]
        found = [self._place(label, digit, new) for label, digit in wanted]
        return None if None in found else Fiber.of(block for each in found for block in each or ())

    def _digits(self, block: AxisBlock, axes: Axes) -> list[tuple[str, AxisBlock]] | None:
        """Return the labels of a block, each with the part of its index in the block."""
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
    """Whether an operand may vary along one of some labels."""
    return any(label in labels or label.removesuffix("?") in labels for label in chain(*axes))


def may_broadcast(axes: Axes, labels: frozenset[str]) -> bool:
    """Whether an operand has a size along one of some labels that may be 1."""
    return any(label.endswith("?") and label[:-1] in labels for label in chain(*axes))


def map_of(view: ModelInfo, node: ir.Node) -> IndexMap | Refusal | None:
    """Return the map of a linear operator.

    None if ranks, sizes or an equation are unknown, or a refusal of what is not followed.
    """
    row = row_of(node)
    rule = _MAPS.get(row.family) or _MAPS.get(row.layer)
    return None if rule is None else rule(view, node)


def _shapes(view: ModelInfo, node: ir.Node, count: int) -> list[Shape] | None:
    found = [view.shape(value) for value in node.inputs[:count]]
    known = [shape for shape in found if shape is not None]
    return known if len(known) == count else None


def _aligned(shape: Sequence[Dim], result: Sequence[Dim], names: Sequence[str]) -> Axes:
    """Return the labels of an operand that broadcasts to a result with these labels."""
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
    """Return the map of A B, with batched matrices or a vector; FusedMatMul transposes either."""
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
    """Return the broadcast shape of two, with None for sizes that may disagree."""
    rank = max(len(a), len(b))
    padded = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    return tuple(_broadcast_size({x, y} - {1}) for x, y in zip(*padded, strict=True))


def _broadcast_size(sizes: set[Dim]) -> Dim:
    fixed = {size for size in sizes if isinstance(size, int)} or sizes
    return fixed.pop() if len(fixed) == 1 else None if fixed else 1


def _gemm(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """Return the map of A' B' + C, with C broadcast."""
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
    """Return the map of Conv, W [out, in / groups, ..], or ConvTranspose (``turned``).

    Of DeformConv, whose offsets and masks differ by sample, the batch of x is not the output's.
    """
    w = view.shape(node.inputs[1]) if len(node.inputs) > 1 else None
    groups = node.attributes.get_int("group", 1)
    if w is None or len(w) < 2 or groups < 1:
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
    row = row_of(node)
    bias = None if row.bias is None or operand(node, row.bias) is None else (out,)
    batch = ("a",) if row.family is Family.DEFORMABLE_CONVOLUTION else ("b",)
    return IndexMap(((batch, inside, *x), (*weight, *taps)), (("b",), out, *y), bias, sizes)


def _einsum(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """Return the map of an explicit equation in which each factor has each label once."""
    terms = einsum_labels(node, [view.rank(factor) for factor in node.inputs])
    if terms is None or any(len(set(factor)) < len(factor) for factor in terms[0]):
        return None
    return IndexMap(
        tuple(tuple((label,) for label in factor) for factor in terms[0]),
        tuple((label,) for label in terms[1]),
    )


def _attention(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """Return the map of com.microsoft's Attention: x W + b is split into heads.

    W keeps no index.
    """
    del view, node
    return IndexMap(
        ((("b",), ("t",), ("k",)), (("k",), ("n",))), (("b",), ("t",), ("v",)), (("n",),)
    )


def _broadcasting(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """Operands that broadcast to the output; one of unknown shape may do so along all axes."""
    shape = view.shape(node.outputs[0])
    if shape is None:
        return None
    names = [f"o{axis}" for axis in range(len(shape))]
    operands = node.inputs[:1] if row_of(node).family is Family.EXPAND else node.inputs
    unknown = (None,) * len(shape)
    shapes = (view.shape(value) for value in operands)
    aligned = (_aligned(unknown if each is None else each, shape, names) for each in shapes)
    return IndexMap(tuple(aligned), tuple((name,) for name in names))


def _renamed(sources: Callable[[ModelInfo, ir.Node], Mapping[int, int] | None]) -> _Rule:
    """Make the rule of what hands on some axes under other names: of each in the output, whose."""

    def rule(view: ModelInfo, node: ir.Node) -> IndexMap | None:
        source_of = sources(view, node)
        if source_of is None:
            return None
        name_of = {source: f"o{target}" for target, source in source_of.items()}
        ranks = (view.rank(value) or 0 for value in (node.inputs[0], node.outputs[0]))
        inside, outside = (
            range(max(rank, 1 + max(axes, default=-1)))
            for rank, axes in zip(ranks, (name_of, source_of), strict=True)
        )
        return IndexMap(
            (tuple((name_of[axis],) if axis in name_of else () for axis in inside),),
            tuple((f"o{axis}",) if axis in source_of else () for axis in outside),
        )

    return rule


def _along(touched: Callable[[ModelInfo, ir.Node], Iterable[int] | Refusal | None]) -> _Rule:
    """Make the rule of operators that work only along some axes, equally for all sets off them."""

    def rule(view: ModelInfo, node: ir.Node) -> IndexMap | Refusal | None:
        found, ranks = touched(view, node), map(view.rank, (*node.inputs[:1], node.outputs[0]))
        rank = next((rank for rank in ranks if rank is not None), None)
        if isinstance(found, Refusal):
            return found
        axes = None if found is None else tuple(found)
        if axes is None or rank is None or (axes and not rank):
            return None
        worked = {axis % rank for axis in axes}
        names = tuple((f"o{axis}!" if axis in worked else f"o{axis}",) for axis in range(rank))
        every = row_of(node).data is None
        return IndexMap((names,) * (len(node.inputs) if every else 1), names)

    return rule


def _scatter(view: ModelInfo, node: ir.Node) -> IndexMap | Refusal | None:
    """Updates that are written to whole sets of the data, or added to them."""
    if not layout.scatters_linearly(node):
        return refuse(RefusalCode.ACTIVATION, node, "is not linear")
    place_of, rank = layout.written(view, node), view.rank(node.inputs[0])
    if place_of is None or rank is None:
        return None
    elements = node.op_type == "ScatterElements"
    whole = {a for a in place_of if not elements or layout.writes_whole(view, node, a)}
    names = tuple((f"o{axis}" if axis in whole else f"o{axis}!",) for axis in range(rank))
    updates: list[Axis] = [()] * (max(place_of.values(), default=-1) + 1)
    for axis, place in place_of.items():
        updates[place] = names[axis]
    return IndexMap((names, (), tuple(updates)), names)


def _blocks(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """A B' + c of com.microsoft: B as the matrix [n k] that its blocks of few bits hold."""
    rank = view.rank(node.inputs[0])
    if not rank:
        return None
    rows = tuple((f"m{axis}",) for axis in range(rank - 1))
    bias = (("n",),) if len(node.inputs) > 5 and node.inputs[5] is not None else None
    return IndexMap(((*rows, ("k",)), (("n",), ("k",))), (*rows, ("n",)), bias)


def _experts(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """sum_e p_e (W_e h_e + b_e) of com.microsoft, h_e of x by the weights and biases before.

    The router and what computes h_e share no index with the output but those of rows.
    """
    rank = view.rank(node.inputs[0])
    if not rank:
        return None
    rows = tuple((f"m{axis}",) for axis in range(rank - 1))
    inner, out = (_EXPERT, *((label,) for label in "ik")), (_EXPERT, ("n",), ("j",))
    bias = out[:2] if operand(node, 5) is not None else None
    return IndexMap(((*rows, ("k",)), ((), _EXPERT), inner, inner[:2], out), (*rows, ("n",)), bias)


def expert_map(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """How x enters experts: by x W_e' + b_e for each expert e."""
    rank = view.rank(node.inputs[0])
    if not rank:
        return None
    weight = (_EXPERT, ("i",), ("k",))
    x = (*((f"m{axis}",) for axis in range(rank - 1)), ("k",))
    return IndexMap((x, weight), (), weight[:2])


def _recurrent(view: ModelInfo, node: ir.Node) -> IndexMap | None:
    """RNN, GRU and LSTM: x W' + Wb for each direction and gate.

    The bias is Wb, present or not: the first half of each row of B.
    """
    del view
    batch_first = node.attributes.get_int("layout", 0) != 0
    x, y = ("b", "t", "k") if batch_first else ("t", "b", "k"), ("t", "d", "b", "h")
    w: Axes = (("d",), ("g",), ("k",))
    factors = tuple((label,) for label in x), w
    return IndexMap(factors, tuple((label,) for label in y), w[:2])


_Rule = Callable[[ModelInfo, ir.Node], IndexMap | Refusal | None]
_MAPS: Mapping[Family | Layer | None, _Rule] = {
    Family.ADDITIVE: _broadcasting,
    Family.CAST: _along(lambda view, node: ()),
    Family.CONCAT: _along(layout.joined),
    Family.CONVOLUTION: _convolution,
    Family.CUMULATIVE: _along(layout.accumulated),
    Family.DEFORMABLE_CONVOLUTION: _convolution,
    Family.DROPOUT: _along(lambda view, node: ()),
    Family.EINSUM: _einsum,
    Family.EXPAND: _broadcasting,
    Family.EXPERTS: _experts,
    Family.GATHER: _renamed(layout.gathered),
    Family.GATHER_ND: _renamed(layout.gathered_by_tuples),
    Family.GEMM: _gemm,
    Family.MASKED: _broadcasting,
    Family.MATMUL: _matmul,
    Family.MATMUL_FUSED: _matmul,
    Family.MATMUL_BLOCKS: _blocks,
    Family.PAD: _along(layout.padded),
    Family.PRODUCT: _broadcasting,
    Family.QUOTIENT: _broadcasting,
    Family.REDUCTION: _renamed(reduce.unreduced),
    Family.RESIZE: _along(reduce.resampled),
    Family.SCATTER: _scatter,
    Family.SLICE: _along(sliced_axes),
    Family.SPATIAL_AVERAGE: _along(reduce.averaged),
    Family.SPLIT: _along(layout.parted),
    Family.TILE: _along(layout.repeated),
    Family.TRANSPOSE: _renamed(layout.transposed),
    Family.TRANSPOSED_CONVOLUTION: lambda view, node: _convolution(view, node, turned=True),
    Layer.CONVOLUTION: _convolution,
    Layer.GEMM: _gemm,
    Layer.PACKED_ATTENTION: _attention,
    Layer.RECURRENT: _recurrent,
}
