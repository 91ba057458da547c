"""Sizes by their numbers or names, and what is known of shapes of them."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graph.dims import Dim, Shape, extent

Size = int | str
SymbolicShape = tuple[Size, ...]


def own_names(value: ir.Value, rank: int) -> SymbolicShape:
    """Name the sizes of a value of which nothing but the rank is known."""
    return tuple(f"{value.name}@{axis}" for axis in range(rank))


def is_rank_alone(value: ir.Value, shape: Shape) -> bool:
    """Whether nothing but the rank is known of a value."""
    return bool(shape) and shape == own_names(value, len(shape))


def is_told(dim: Dim) -> bool:
    """Whether a size is a number, or has a name that no value gave it."""
    return isinstance(dim, int) or (dim is not None and "@" not in dim)


def fits(small: Shape | None, large: Shape | None) -> bool:
    """Whether broadcasting the first against the second is known to give the second's shape."""
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
    """Name the smaller of a size and a positive number, as a Slice up to a size leaves it."""
    return f"{size}@<={most}"


def broadcast(shapes: list[SymbolicShape | None]) -> SymbolicShape | None:
    """Return the shape that shapes broadcast to, None where it depends on what is not known.

    Of a size and the smaller of it and a number, no broadcast gives another than the size: where
    they differ, the number is 1.
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
    """Return the size of which :func:`at_most` took the smaller part."""
    name, _, most = str(size).rpartition("@<=")
    return name if most.isdigit() else None


def product(sizes: SymbolicShape, name: str) -> Size:
    """Return a product of sizes, by a name of its own where it has none by theirs."""
    product = extent(sizes)
    known = None if product is None else product.dim
    return name if known is None else known


def quotient(whole: SymbolicShape, part: SymbolicShape) -> Size | None:
    """Divide products of sizes; None where the quotient is not one size."""
    above, below = extent(whole), extent(part)
    quotient = None if above is None or below is None else above // below
    return None if quotient is None else quotient.dim


def equal(a: Size, b: Size) -> bool | None:
    """Say whether two sizes are the same, None where that depends on what is not known.

    A named size is no negative number: exporters compare a target with -1.
    """
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    negative = any(isinstance(size, int) and size < 0 for size in (a, b))
    return False if negative else None
