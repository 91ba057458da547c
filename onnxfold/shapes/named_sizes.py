"""Sizes as numbers or names, and vectors of them that a graph computes for Reshape."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import onnx_ir as ir

from onnxfold.graph.dims import Dim, Shape, extent

if TYPE_CHECKING:
    from onnxfold.shapes.symbolic import SymbolicShapes

Size = int | str
SymbolicShape = tuple[Size, ...]


def own_names(value: ir.Value, rank: int) -> SymbolicShape:
    """Name the sizes of a value whose rank alone is known."""
    return tuple(f"{value.name}@{axis}" for axis in range(rank))


def is_rank_alone(value: ir.Value, shape: Shape) -> bool:
    """Whether only the rank of a value is known."""
    return bool(shape) and shape == own_names(value, len(shape))


def is_told(dim: Dim) -> bool:
    """Whether a size is a number, or has a name from the model."""
    return isinstance(dim, int) or (dim is not None and "@" not in dim)


def fits(small: Shape | None, large: Shape | None) -> bool:
    """Whether broadcasting the first against the second surely yields the second's shape."""
    if small is None or large is None or len(small) > len(large):
        return False
    tail = large[len(large) - len(small) :]
    return all(a is not None and a in (1, b) for a, b in zip(small, tail, strict=True))


def same_elements(a: SymbolicShape | None, b: SymbolicShape | None) -> bool:
    """Whether shapes of equally many elements are equal: one unknown pair follows from the rest."""
    if a is None or b is None or len(a) != len(b):
        return False
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    if any(isinstance(x, int) and isinstance(y, int) for x, y in pairs) or 0 in a:
        return False
    return len(pairs) <= 1


def at_most(size: str, most: int) -> str:
    """Name the minimum of a size and a positive number, as a Slice up to a size yields it."""
    return f"{size}@<={most}"


def broadcast(shapes: list[SymbolicShape | None]) -> SymbolicShape | None:
    """Return the broadcast of shapes, or None if it depends on unknown sizes.

    A size broadcast against its minimum with a number yields the size: if they differ, the number
    is 1.
    """
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = max(len(shape) for shape in known)
    result: list[Size] = []
    for back in range(rank, 0, -1):
        sizes = {shape[-back] for shape in known if len(shape) >= back} - {1}
        sizes = {size for size in sizes if _capped(size) not in sizes}
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(sizes) > 1 and not numbers:
            return None
        result.append(numbers[0] if numbers else next(iter(sizes), 1))
    return tuple(result)


def _capped(size: Size) -> str | None:
    """Return the size from which :func:`at_most` formed a minimum, or None."""
    name, _, most = str(size).rpartition("@<=")
    return name if most.isdigit() else None


def product(sizes: SymbolicShape, name: str) -> Size:
    """Return a product of sizes, by a new name if theirs give none."""
    product = extent(sizes)
    known = None if product is None else product.dim
    return name if known is None else known


def quotient(whole: SymbolicShape, part: SymbolicShape) -> Size | None:
    """Divide products of sizes; None if the quotient is not one size."""
    above, below = extent(whole), extent(part)
    quotient = None if above is None or below is None else above // below
    return None if quotient is None else quotient.dim


def equal(a: Size, b: Size) -> bool | None:
    """Return whether two sizes are equal, or None if that depends on unknown sizes.

    A named size is never negative: exporters compare a target with -1.
    """
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    negative = any(isinstance(size, int) and size < 0 for size in (a, b))
    return False if negative else None


def _of_shape(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    dims = known.dims(node.inputs[0])
    if dims is None:
        return None
    end = node.attributes.get_int("end", len(dims))
    return dims[node.attributes.get_int("start", 0) : end]


def _of_size(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    dims = known.dims(node.inputs[0])
    return None if dims is None else (product(dims, f"{node.outputs[0].name}@0"),)


def _of_cast(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    """Return numbers and names, unless the type is so narrow that a size would be rounded."""
    vector, dtype = known.vector(node.inputs[0]), node.outputs[0].dtype
    named = vector is not None and any(isinstance(size, str) for size in vector)
    return None if named and (dtype is None or dtype.bitwidth < 32) else vector


def _of_first(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    return known.vector(node.inputs[0])


def _of_concat(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    parts = [known.vector(operand) for operand in node.inputs]
    if any(part is None for part in parts):
        return None
    return tuple(item for part in parts if part is not None for item in part)


def _of_gather(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    vector, indices = known.vector(node.inputs[0]), known.view.integers(node.inputs[1])
    if vector is None or indices is None:
        return None
    if any(not -len(vector) <= index < len(vector) for index in indices):
        return None
    return tuple(vector[index] for index in indices)


def _of_slice(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    vector = known.vector(node.inputs[0])
    bounds = [known.view.integers(operand) for operand in node.inputs[1:3]]
    if known.view.opset < 10:
        bounds = [tuple(node.attributes.get_ints(name, ())) for name in ("starts", "ends")]
    steps = known.view.integers(node.inputs[4]) if len(node.inputs) > 4 else (1,)
    if vector is None or len(bounds) < 2 or bounds[0] is None or bounds[1] is None:
        return None
    if steps is None or [len(bounds[0]), len(bounds[1]), len(steps)] != [1, 1, 1]:
        return None
    if steps[0] == 0 or (steps[0] < 0 and bounds[0][0] < -len(vector)):
        return None  # in ONNX the second starts at the first size, in Python it has none
    return vector[bounds[0][0] : bounds[1][0] : steps[0]]


def _of_choice(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    """Return the result of Where if equality of two known vectors decides it."""
    compared = node.inputs[0].producer() if node.inputs[0] is not None else None
    if compared is None or compared.domain != "" or compared.op_type != "Equal":
        return None
    flat = (*compared.inputs, *node.inputs[1:])
    vectors = [known.vector(value) for value in flat if value and known.view.rank(value) == 1]
    told = [vector for vector in vectors if vector is not None]
    if len(told) != 4 or len({len(vector) for vector in told}) != 1:
        return None
    chosen = []
    for a, b, same, other in zip(*told, strict=True):
        taken = equal(a, b)
        if taken is None:
            return None
        chosen.append(same if taken else other)
    return tuple(chosen)


def _of_product(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    vector = known.vector(node.inputs[0])
    if vector is None or any(isinstance(size, int) and size < 0 for size in vector):
        return None  # a name represents only a size
    return (product(vector, f"{node.outputs[0].name}@0"),)


def _of_largest(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    """Return the maximum of numbers, or a name if all operands are that name."""
    vectors = [known.vector(operand) for operand in node.inputs]
    told = [vector for vector in vectors if vector is not None]
    if len(told) < len(vectors) or len({len(vector) for vector in told}) != 1:
        return None
    largest: list[Size] = []
    for sizes in map(set, zip(*told, strict=True)):
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(sizes) > 1 and len(numbers) < len(sizes):
            return None
        largest.append(max(numbers) if numbers else sizes.pop())
    return tuple(largest)


def _of_arithmetic(known: SymbolicShapes, node: ir.Node) -> SymbolicShape | None:
    a, b = known.vector(node.inputs[0]), known.vector(node.inputs[1])
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


_Rule = Callable[["SymbolicShapes", ir.Node], SymbolicShape | None]

VECTOR_RULES: Final[dict[str, _Rule]] = {
    "Add": _of_arithmetic,
    "Cast": _of_cast,
    "Concat": _of_concat,
    "Div": _of_arithmetic,
    "Gather": _of_gather,
    "Identity": _of_first,
    "Max": _of_largest,
    "Mul": _of_arithmetic,
    "ReduceProd": _of_product,
    "Reshape": _of_first,
    "Shape": _of_shape,
    "Size": _of_size,
    "Slice": _of_slice,
    "Squeeze": _of_first,
    "Sub": _of_arithmetic,
    "Unsqueeze": _of_first,
    "Where": _of_choice,
}
