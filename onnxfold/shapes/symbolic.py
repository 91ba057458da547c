"""Shapes in which equal symbols mean equal sizes, and integer vectors computed from shapes.

onnx's inference gives a fresh symbol to every size that it cannot follow. Exporters build the
target of Reshape and Expand from Shape, Gather and Concat, so those vectors are followed here, and
unknown sizes of a value take the names of the value they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.graph import keeps_dims
from onnxfold.graph.model_info import SIZES
from onnxfold.graph.operands import einsum_labels, operand
from onnxfold.graph.sequences import inserted_elements
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.shapes.named_sizes import (
    VECTOR_RULES,
    Size,
    SymbolicShape,
    at_most,
    broadcast,
    own_names,
    product,
    quotient,
)

if TYPE_CHECKING:
    from onnxfold.graph.model_info import ModelInfo

# Depth of nested calls from which operands are resolved first, one by one.
_DEEP = 40


def _unknown_ancestors(value: ir.Value, known: Container[ir.Value]) -> list[ir.Value]:
    """Return the unknown values from which a value is computed, operands first and itself last."""
    order: list[ir.Value] = []
    seen = {value}
    pending = [(value, iter(_operands(value)))]
    while pending:
        current, operands = pending[-1]
        following = next((v for v in operands if v not in known and v not in seen), None)
        if following is None:
            order.append(current)
            pending.pop()
        else:
            seen.add(following)
            pending.append((following, iter(_operands(following))))
    return order


def _operands(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [operand for operand in node.inputs if operand is not None]


class SymbolicShapes:
    """Shapes and integer vectors of one model, each computed once.

    ``assumed_rank`` replaces unknown ranks, for callers that need no more.
    """

    def __init__(self, view: ModelInfo, assumed_rank: int | None = None):
        self.view = view
        self._assumed_rank = assumed_rank
        self._depth = 0
        self._dims: dict[ir.Value, SymbolicShape | None] = {}
        self._vectors: dict[ir.Value, SymbolicShape | None] = {}

    def dims(self, value: ir.Value | None) -> SymbolicShape | None:
        """Return the shape with a distinct symbol for every unknown size."""
        if value is None:
            return None
        return self._settled(value, self._dims, self._find_dims)

    def learn(self, value: ir.Value, dims: SymbolicShape) -> None:
        """Record a shape that was found by other means."""
        self._dims[value] = dims

    def vector(self, value: ir.Value | None) -> SymbolicShape | None:
        """Return an integer tensor, flattened, as far as it follows from shapes and constants."""
        if value is None:
            return None
        return self._settled(value, self._vectors, self._find_vector)

    def _settled(
        self,
        value: ir.Value,
        known: dict[ir.Value, SymbolicShape | None],
        find: Callable[[ir.Value], SymbolicShape | None],
    ) -> SymbolicShape | None:
        """Find what a value's operands determine.

        Beyond some recursion depth, operands go first.
        """
        if value in known:
            return known[value]
        order = [value] if self._depth < _DEEP else _unknown_ancestors(value, known)
        self._depth += 1
        for each in order:
            if each not in known:
                known[each] = None
                known[each] = find(each)
        self._depth -= 1
        return known[value]

    def _find_dims(self, value: ir.Value) -> SymbolicShape | None:
        shape = self.view.shape(value)
        if shape is not None and all(isinstance(dim, int) for dim in shape):
            return tuple(dim for dim in shape if isinstance(dim, int))
        node = value.producer()
        derived = None if node is None else self.derived(node, value)
        if shape is None:
            return derived or self._assumed(value)
        unknown = own_names(value, len(shape))
        known = derived if derived is not None and len(derived) == len(shape) else unknown
        return tuple(
            size if dim is None or (not isinstance(dim, int) and size not in unknown) else dim
            for dim, size in zip(shape, known, strict=True)
        )

    def _assumed(self, value: ir.Value) -> SymbolicShape | None:
        rank = self._assumed_rank
        return None if rank is None else own_names(value, rank)

    def derived(self, node: ir.Node, value: ir.Value) -> SymbolicShape | None:
        """Return the shape that a rule derives from the operands alone, or None."""
        row = row_of(node)
        # A call of ours returns the sum in addition to its norm.
        known = node.outputs if facets.broadcasts(row) is not None else node.outputs[:1]
        if not node.inputs or value not in known:
            return None
        if facets.same_shape(row):
            return self.dims(node.inputs[0])
        if facets.reduces(row):
            return self.reduced(node)
        if (count := facets.broadcasts(row)) is not None:
            return broadcast([self.dims(operand) for operand in node.inputs[: count or None]])
        if node.domain != "":
            return None
        rule = _SHAPE_RULES.get(node.op_type)
        return None if rule is None else rule(self, node)

    def reshaped(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a Reshape, with 0 and -1 resolved if possible."""
        source, target = self.dims(node.inputs[0]), self.vector(node.inputs[1])
        if source is None or target is None:
            return None
        if node.attributes.get_int("allowzero", 0) == 0:
            if any(dim == 0 and axis >= len(source) for axis, dim in enumerate(target)):
                return None
            target = tuple(source[i] if dim == 0 else dim for i, dim in enumerate(target))
        if -1 not in target:
            return target
        missing = quotient(source, tuple(dim for dim in target if dim != -1))
        size: Size = f"{node.outputs[0].name}@-1" if missing is None else missing
        return tuple(size if dim == -1 else dim for dim in target)

    def expanded(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of an Expand."""
        return broadcast([self.dims(node.inputs[0]), self.vector(node.inputs[1])])

    def filled(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a ConstantOfShape."""
        return self.vector(node.inputs[0])

    def multiplied(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a Gemm, or of a MatMul of matrices."""
        x, y = self.dims(node.inputs[0]), self.dims(node.inputs[1])
        if x is None or y is None or len(x) < 2 or len(y) < 2:
            return None
        if node.attributes.get_int("transA", 0):
            x = x[::-1]
        batch = broadcast([x[:-2], y[:-2]])
        columns = y[-2 if node.attributes.get_int("transB", 0) else -1]
        return None if batch is None else (*batch, x[-2], columns)

    def contracted(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of an Einsum; a label has the size to which its axes broadcast."""
        shapes = [self.dims(factor) for factor in node.inputs]
        known = [shape for shape in shapes if shape is not None]
        labels = einsum_labels(node, [None if shape is None else len(shape) for shape in shapes])
        if labels is None or len(known) < len(shapes):
            return None
        factors, result = labels
        if any(len(term) != len(shape) for term, shape in zip(factors, known, strict=True)):
            return None  # whose rank is only claimed by the model
        met: dict[str, list[SymbolicShape | None]] = {}
        for term, shape in zip(factors, known, strict=True):
            for label, size in zip(term, shape, strict=True):
                met.setdefault(label, []).append((size,))
        name = node.outputs[0].name
        sizes = enumerate(broadcast(met.get(label, [None])) for label in result)
        return tuple(f"{name}@{axis}" if size is None else size[0] for axis, size in sizes)

    def ranged(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a Range from zero up to a size, in steps of one."""
        start, limit, step = (self.vector(operand(node, index)) for index in range(3))
        told = [start, step] == [(0,), (1,)] and limit and isinstance(limit[0], str)
        return limit if told else None

    def tiled(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a Tile."""
        source, repeats = self.dims(node.inputs[0]), self.vector(node.inputs[1])
        if source is None or repeats is None or len(source) != len(repeats):
            return None
        name = node.outputs[0].name
        pairs = enumerate(zip(source, repeats, strict=True))
        return tuple(product(pair, f"{name}@{axis}") for axis, pair in pairs)

    def sliced(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a Slice; axes that are not sliced keep their sizes."""
        source, start = self.dims(node.inputs[0]), self.vector(operand(node, 1))
        axes = self.view.integers(operand(node, 3))
        if axes is None and operand(node, 3) is None and start is not None:
            axes = tuple(range(len(start)))
        if source is None or axes is None:
            return None
        if any(not -len(source) <= axis < len(source) for axis in axes):
            return None
        cut = {axis % len(source): place for place, axis in enumerate(axes)}
        name = node.outputs[0].name
        return tuple(
            dim if i not in cut else self._cut(node, cut[i], dim, f"{name}@{i}")
            for i, dim in enumerate(source)
        )

    def _cut(self, node: ir.Node, place: int, size: Size, name: str) -> Size:
        """Return how many of so many elements a Slice keeps, by a new name if unknown."""
        start, end, step = (self._entry(operand(node, index), place) for index in (1, 2, 4))
        step = 1 if operand(node, 4) is None else step
        if not isinstance(size, int) or not isinstance(start, int) or step in (0, None):
            return name
        if isinstance(end, str) and (start, step) == (0, 1) and size > 0:
            return at_most(end, size)
        if not isinstance(end, int) or not isinstance(step, int) or (step < 0 and start < -size):
            return name  # ONNX starts such a slice at the first element, Python before it
        return len(range(size)[start:end:step])

    def _entry(self, value: ir.Value | None, place: int) -> Size | None:
        vector = self.vector(value)
        return None if vector is None or place >= len(vector) else vector[place]

    def stacked(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a ConcatFromSequence that stacks elements of one shape."""
        shapes = {self.dims(element) for element in inserted_elements(node.inputs[0])}
        if len(shapes) != 1 or node.attributes.get_int("new_axis", 0) != 1:
            return None
        (element,) = shapes
        axis = node.attributes.get_int("axis", 0)
        if element is None or not -len(element) <= axis + (axis < 0) <= len(element):
            return None
        place = axis % (len(element) + 1)
        return (*element[:place], f"{node.outputs[0].name}@{place}", *element[place:])

    def transposed(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a Transpose."""
        source = self.dims(node.inputs[0])
        if source is None:
            return None
        order = node.attributes.get_ints("perm", tuple(range(len(source)))[::-1])
        if sorted(order) != list(range(len(source))):
            return None  # of unknown shape, so inference has not complained
        return tuple(source[axis] for axis in order)

    def unsqueezed(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of an Unsqueeze."""
        source, axes = self.dims(node.inputs[0]), self.view.axes(node)
        if source is None or not axes:
            return None
        rank = len(source) + len(axes)
        places = {axis % rank for axis in axes}
        if len(places) < len(axes):
            return None  # computed axes that repeat one, which inference does not notice
        rest = iter(source)
        return tuple(1 if axis in places else next(rest) for axis in range(rank))

    def reduced(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of a reduction."""
        source, axes = self.dims(node.inputs[0]), self.view.axes(node)
        if source is None or axes is None:
            return None
        if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
            return source
        places = {axis % len(source) for axis in axes or range(len(source))} if source else set()
        if keeps_dims(node):
            return tuple(1 if axis in places else dim for axis, dim in enumerate(source))
        return tuple(dim for axis, dim in enumerate(source) if axis not in places)

    def spectra(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape of an STFT: batch, frames, frequencies, real and imaginary."""
        signal = self.dims(node.inputs[0])
        window, length = (*node.inputs[2:4], None, None)[:2]
        size = self.vector(length) if length is not None else self.dims(window)
        if signal is None:
            return None
        name = node.outputs[0].name
        frequencies: Size = f"{name}@2"
        if size is not None and len(size) == 1 and isinstance(size[0], int):
            half = node.attributes.get_int("onesided", 1)
            frequencies = size[0] // 2 + 1 if half else size[0]
        return signal[0], f"{name}@1", frequencies, 2

    def _find_vector(self, value: ir.Value) -> SymbolicShape | None:
        integers = self.view.integers(value)
        if integers is not None:
            return integers
        node = value.producer()
        if node is None or node.domain != "" or not node.inputs:
            return None
        rule = VECTOR_RULES.get(node.op_type)
        return None if rule is None else rule(self, node)


_Rule = Callable[[SymbolicShapes, ir.Node], SymbolicShape | None]

_SHAPE_RULES: dict[str, _Rule] = {
    "ConcatFromSequence": SymbolicShapes.stacked,
    "ConstantOfShape": SymbolicShapes.filled,
    "Einsum": SymbolicShapes.contracted,
    "Expand": SymbolicShapes.expanded,
    "Gemm": SymbolicShapes.multiplied,
    "MatMul": SymbolicShapes.multiplied,
    "Range": SymbolicShapes.ranged,
    "Reshape": SymbolicShapes.reshaped,
    "STFT": SymbolicShapes.spectra,
    "Slice": SymbolicShapes.sliced,
    "Tile": SymbolicShapes.tiled,
    "Transpose": SymbolicShapes.transposed,
    "Unsqueeze": SymbolicShapes.unsqueezed,
}


@SIZES.found_by
def find_sizes(info: ModelInfo) -> Callable[[ir.Value | None], SymbolicShape | None]:
    """Return the function that finds the entries of a vector of sizes."""
    return SymbolicShapes(info).vector
