"""Estimated work of additions and savings of a plan; a target has the prices.

Symbolic dimensions count as 1: they are the same for all tensors of a stream, so only ratios
matter.
"""

from collections.abc import Collection
from math import prod

from onnxfold.graph import Dim, Shape
from onnxfold.options import Defer, Options
from onnxfold.target import Work


def work(shape: Shape | None, size: int) -> Work:
    """Return the work on a tensor whose rows have ``size`` elements."""
    count = elements(shape)
    fixed = shape is not None and all(isinstance(dim, int) for dim in shape)
    return Work(count, count // max(size, 1), fixed)


def microseconds(picoseconds: int) -> str:
    """Return a price as it is written in reasons and reports."""
    return f"{picoseconds / 1e6:.3g} µs"


def elements(shape: Shape | None) -> int:
    """Return the number of elements, with every symbolic or unknown dimension as 1."""
    return prod(dim for dim in shape or () if isinstance(dim, int))


def work_beside(shape: Shape | None, size: int, symbols: Collection[Dim], most: int) -> Work:
    """Return the work relative to another tensor, whose ``symbols`` count as 1.

    Any other symbol is an unknown size: such a shape has at least ``most`` elements.
    """
    found = work(shape, size)
    if all(isinstance(dim, int) or dim in symbols for dim in shape or ()):
        return found
    count = max(found.elements, most)
    return Work(count, count // max(size, 1), fixed=False)


def is_wanted(settings: Options) -> bool:
    """Whether norms are deferred, or stay deferred; otherwise they are computed in place."""
    if settings.defer is Defer.AUTO:
        return settings.target.traits.defers
    return settings.defer is Defer.ALL
