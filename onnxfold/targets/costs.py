"""What additions cost and folds save, in picoseconds, by the prices of a target.

Symbolic dimensions count as 1: they are the same for all tensors of a stream, so only ratios
matter.
"""

from collections.abc import Collection
from dataclasses import astuple, dataclass, replace
from math import prod

from onnxfold.graph import Dim, Shape
from onnxfold.options import Defer, Options
from onnxfold.target import Prices, Target


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an operator: the numbers of elements and rows, and whether sizes are ``fixed``.

    Unknown sizes count as 1, so that elements and rows are per unit of them.
    """

    elements: int
    rows: int
    fixed: bool


@dataclass(frozen=True, slots=True)
class Costs(Prices):
    """The prices of a target, and what parts of a plan cost or save by them, in picoseconds."""

    def saved(self, work: Work) -> int:
        """Return the savings of a LayerNorm that becomes an RMSNorm, without its beta."""
        return work.elements * (self.layer_norm - self.rms_norm)

    def added(self, work: Work) -> int:
        """Return the cost of an Add of a vector."""
        return work.elements * self.addition + work.rows * self.row + self.more(1, work)

    def kept_apart(self, work: Work) -> int:
        """Return the savings of an Add and a norm over the slow operator of their fusion."""
        return work.elements * (self.joined_norm - self.layer_norm - self.addition)

    def uncertain(self, work: Work) -> int:
        """Return by how much a fold that adds operators may be dearer than the prices say.

        An eighth of the norm: of 256 rows of 768 they say 0.86 of its time, and 0.92 was measured;
        of 64 rows of 384, 0.98 and 1.00. A session that is longer for less is not faster.
        """
        return work.elements * self.layer_norm // 8

    def centred(self, work: Work) -> int:
        """Return the cost of an inserted centering."""
        return work.elements * self.centring + self.more(self.centring_operators, work)

    def of_elements(self) -> "Costs":
        """Return the prices of elements alone, so that decisions are the same at any size."""
        return replace(self, row=0, operator=0)

    def more(self, operators: int, work: Work) -> int:
        """Return the cost of operators in addition to their elements, 0 if sizes are unknown."""
        return operators * self.operator if work.fixed else 0


def costs_of(target: Target) -> Costs:
    """Return what plans cost by the prices of a target."""
    return Costs(*astuple(target.traits.prices))


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
