"""Shapes in which equal symbols mean equal sizes, and integer vectors computed from shapes.

onnx's inference gives a fresh symbol to every size that it cannot follow.  Exporters build the
target of Reshape and Expand from Shape, Gather and Concat, so this follows those vectors, and
lets a value's unknown sizes be those of the value they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.graph.attributes import keeps_dims
from onnxfold.graph.operands import operand
from onnxfold.graph.sequences import inserted_elements
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.shapes.named_sizes import Size, SymbolicShape, broadcast, equal, product, quotient

if TYPE_CHECKING:
    from onnxfold.graph.model_info import ModelInfo

# Calls within calls until operands are found first, one by one.
_DEEP = 40


def _unknown_ancestors(value: ir.Value, known: Container[ir.Value]) -> list[ir.Value]:
    """Return what a value is computed from, and it last, operands always first."""
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
    """Shapes and integer vectors of one model, remembered.

    ``assumed_rank`` is that of every value whose rank is not known, for what asks no more of it.
    """

    def __init__(self, view: ModelInfo, assumed_rank: int | None = None):
        self._view = view
        self._assumed_rank = assumed_rank
        self._depth = 0
        self._dims: dict[ir.Value, SymbolicShape | None] = {}
        self._vectors: dict[ir.Value, SymbolicShape | None] = {}

    def dims(self, value: ir.Value | None) -> SymbolicShape | None:
        """Return the shape with a distinct symbol for every size that nothing is known about."""
        if value is None:
            return None
        return self._settled(value, self._dims, self._find_dims)

    def learn(self, value: ir.Value, dims: SymbolicShape) -> None:
        """Take a shape that was found by other means."""
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
        """Find what a value's operands determine; after some recursion, operands go first."""
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
        shape = self._view.shape(value)
        if shape is not None and all(isinstance(dim, int) for dim in shape):
            return tuple(dim for dim in shape if isinstance(dim, int))
        node = value.producer()
        derived = None if node is None else self.derived(node, value)
        if shape is None:
            return derived or self._assumed(value)
        unknown = tuple(f"{value.name}@{axis}" for axis in range(len(shape)))
        known = derived if derived is not None and len(derived) == len(shape) else unknown
        return tuple(
            size if dim is None or (not isinstance(dim, int) and size not in unknown) else dim
            for dim, size in zip(shape, known, strict=True)
        )

    def _assumed(self, value: ir.Value) -> SymbolicShape | None:
        rank = self._assumed_rank
        return None if rank is None else tuple(f"{value.name}@{axis}" for axis in range(rank))

    def derived(self, node: ir.Node, value: ir.Value) -> SymbolicShape | None:
        """Return the shape that a rule tells by the operands alone, None where no rule does."""
        row = row_of(node)
        # A call of ours gives the sum besides its norm.
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
        """Return the shape that Reshape gives, resolving 0 and -1 where they can be."""
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
        """Return the shape that Expand gives."""
        return broadcast([self.dims(node.inputs[0]), self.vector(node.inputs[1])])

    def filled(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that ConstantOfShape gives."""
        return self.vector(node.inputs[0])

    def multiplied(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that Gemm gives, or MatMul by a matrix."""
        x, matrix = self.dims(node.inputs[0]), self.dims(node.inputs[1])
        if x is None or matrix is None or len(x) < 2 or len(matrix) != 2:
            return None
        if node.attributes.get_int("transA", 0):
            x = x[::-1]
        return (*x[:-1], matrix[0 if node.attributes.get_int("transB", 0) else 1])

    def tiled(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that Tile gives."""
        source, repeats = self.dims(node.inputs[0]), self.vector(node.inputs[1])
        if source is None or repeats is None or len(source) != len(repeats):
            return None
        name = node.outputs[0].name
        pairs = enumerate(zip(source, repeats, strict=True))
        return tuple(product(pair, f"{name}@{axis}") for axis, pair in pairs)

    def sliced(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that Slice gives where its bounds are computed: that of other axes."""
        source = self.dims(node.inputs[0])
        start, end, axes = (self._view.integers(operand(node, index)) for index in (1, 2, 3))
        if source is None or axes is None or (start is not None and end is not None):
            return None
        if any(not -len(source) <= axis < len(source) for axis in axes):
            return None
        cut = {axis % len(source) for axis in axes}
        name = node.outputs[0].name
        return tuple(f"{name}@{i}" if i in cut else dim for i, dim in enumerate(source))

    def stacked(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that ConcatFromSequence gives where it stacks elements of one shape."""
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
        """Return the shape that Transpose gives."""
        source = self.dims(node.inputs[0])
        if source is None:
            return None
        order = node.attributes.get_ints("perm", tuple(range(len(source)))[::-1])
        if sorted(order) != list(range(len(source))):
            return None  # of a shape that no inference knows, so that none has complained
        return tuple(source[axis] for axis in order)

    def unsqueezed(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that Unsqueeze gives."""
        source, axes = self.dims(node.inputs[0]), self._view.axes(node)
        if source is None or not axes:
            return None
        rank = len(source) + len(axes)
        places = {axis % rank for axis in axes}
        if len(places) < len(axes):
            return None  # computed axes that name one twice, which no inference notices
        rest = iter(source)
        return tuple(1 if axis in places else next(rest) for axis in range(rank))

    def reduced(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that a reduction gives."""
        source, axes = self.dims(node.inputs[0]), self._view.axes(node)
        if source is None or axes is None:
            return None
        if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
            return source
        places = {axis % len(source) for axis in axes or range(len(source))} if source else set()
        if keeps_dims(node):
            return tuple(1 if axis in places else dim for axis, dim in enumerate(source))
        return tuple(dim for axis, dim in enumerate(source) if axis not in places)

    def spectra(self, node: ir.Node) -> SymbolicShape | None:
        """Return the shape that STFT gives: batch, frames, frequencies, real and imaginary."""
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
        integers = self._view.integers(value)
        if integers is not None:
            return integers
        node = value.producer()
        if node is None or node.domain != "" or not node.inputs:
            return None
        rule = _VECTOR_RULES.get(node.op_type)
        return None if rule is None else rule(self, node)

    def _of_shape(self, node: ir.Node) -> SymbolicShape | None:
        dims = self.dims(node.inputs[0])
        if dims is None:
            return None
        end = node.attributes.get_int("end", len(dims))
        return dims[node.attributes.get_int("start", 0) : end]

    def _of_size(self, node: ir.Node) -> SymbolicShape | None:
        dims = self.dims(node.inputs[0])
        return None if dims is None else (product(dims, f"{node.outputs[0].name}@0"),)

    def _of_cast(self, node: ir.Node) -> SymbolicShape | None:
        """Return numbers and names; not in types of so few bits that a name would be rounded."""
        vector, dtype = self.vector(node.inputs[0]), node.outputs[0].dtype
        named = vector is not None and any(isinstance(size, str) for size in vector)
        return None if named and (dtype is None or dtype.bitwidth < 32) else vector

    def _of_first(self, node: ir.Node) -> SymbolicShape | None:
        return self.vector(node.inputs[0])

    def _of_concat(self, node: ir.Node) -> SymbolicShape | None:
        parts = [self.vector(operand) for operand in node.inputs]
        if any(part is None for part in parts):
            return None
        return tuple(item for part in parts if part is not None for item in part)

    def _of_gather(self, node: ir.Node) -> SymbolicShape | None:
        vector, indices = self.vector(node.inputs[0]), self._view.integers(node.inputs[1])
        if vector is None or indices is None:
            return None
        if any(not -len(vector) <= index < len(vector) for index in indices):
            return None
        return tuple(vector[index] for index in indices)

    def _of_slice(self, node: ir.Node) -> SymbolicShape | None:
        vector = self.vector(node.inputs[0])
        bounds = [self._view.integers(operand) for operand in node.inputs[1:3]]
        if self._view.opset < 10:
            bounds = [tuple(node.attributes.get_ints(name, ())) for name in ("starts", "ends")]
        steps = self._view.integers(node.inputs[4]) if len(node.inputs) > 4 else (1,)
        if vector is None or len(bounds) < 2 or bounds[0] is None or bounds[1] is None:
            return None
        if steps is None or [len(bounds[0]), len(bounds[1]), len(steps)] != [1, 1, 1]:
            return None
        if steps[0] == 0 or (steps[0] < 0 and bounds[0][0] < -len(vector)):
            return None  # in ONNX the second begins with the first size, in Python with none
        return vector[bounds[0][0] : bounds[1][0] : steps[0]]

    def _of_choice(self, node: ir.Node) -> SymbolicShape | None:
        """Return what Where makes of two vectors by what is known to be equal of two others."""
        compared = node.inputs[0].producer() if node.inputs[0] is not None else None
        if compared is None or compared.domain != "" or compared.op_type != "Equal":
            return None
        flat = (*compared.inputs, *node.inputs[1:])
        vectors = [self.vector(value) for value in flat if value and self._view.rank(value) == 1]
        if len(vectors) != 4 or len({vector and len(vector) for vector in vectors}) != 1:
            return None
        chosen = []
        for a, b, same, other in zip(*(vector or () for vector in vectors), strict=True):
            taken = equal(a, b)
            if taken is None:
                return None
            chosen.append(same if taken else other)
        return tuple(chosen)

    def _of_product(self, node: ir.Node) -> SymbolicShape | None:
        vector = self.vector(node.inputs[0])
        if vector is None or any(isinstance(size, int) and size < 0 for size in vector):
            return None  # a name stands for a size alone
        return (product(vector, f"{node.outputs[0].name}@0"),)

    def _of_arithmetic(self, node: ir.Node) -> SymbolicShape | None:
        a, b = self.vector(node.inputs[0]), self.vector(node.inputs[1])
        if a is None or b is None or len(a) != 1 or len(b) != 1:
            return None
        x, y = a[0], b[0]
        if isinstance(x, int) and isinstance(y, int):
            if node.op_type == "Div":  # of sizes, which are not negative
                whole = x >= 0 and y > 0 and (x % y == 0 or _is_integer(node.outputs[0]))
                return (x // y,) if whole else None
            result = {"Add": x + y, "Sub": x - y, "Mul": x * y}.get(node.op_type)
            return None if result is None else (result,)
        if node.op_type == "Mul" and not any(isinstance(n, int) and n < 0 for n in (x, y)):
            return (product((x, y), f"{node.outputs[0].name}@0"),)
        ratio = quotient((x,), (y,)) if node.op_type == "Div" else None
        return None if ratio is None else (ratio,)


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


_Rule = Callable[[SymbolicShapes, ir.Node], SymbolicShape | None]

# Each has a rule of its own for its result; so have integer vectors.
_SHAPE_RULES: dict[str, _Rule] = {
    "ConcatFromSequence": SymbolicShapes.stacked,
    "ConstantOfShape": SymbolicShapes.filled,
    "Expand": SymbolicShapes.expanded,
    "Gemm": SymbolicShapes.multiplied,
    "MatMul": SymbolicShapes.multiplied,
    "Reshape": SymbolicShapes.reshaped,
    "STFT": SymbolicShapes.spectra,
    "Slice": SymbolicShapes.sliced,
    "Tile": SymbolicShapes.tiled,
    "Transpose": SymbolicShapes.transposed,
    "Unsqueeze": SymbolicShapes.unsqueezed,
}

_VECTOR_RULES: dict[str, _Rule] = {
    "Add": SymbolicShapes._of_arithmetic,
    "Cast": SymbolicShapes._of_cast,
    "Concat": SymbolicShapes._of_concat,
    "Div": SymbolicShapes._of_arithmetic,
    "Gather": SymbolicShapes._of_gather,
    "Identity": SymbolicShapes._of_first,
    "Mul": SymbolicShapes._of_arithmetic,
    "ReduceProd": SymbolicShapes._of_product,
    "Reshape": SymbolicShapes._of_first,
    "Shape": SymbolicShapes._of_shape,
    "Size": SymbolicShapes._of_size,
    "Slice": SymbolicShapes._of_slice,
    "Squeeze": SymbolicShapes._of_first,
    "Sub": SymbolicShapes._of_arithmetic,
    "Unsqueeze": SymbolicShapes._of_first,
    "Where": SymbolicShapes._of_choice,
}
