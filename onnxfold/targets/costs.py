"""Estimated run time of additions and savings of a plan, in picoseconds per element.

Symbolic dimensions count as 1: they are the same for all tensors of a stream, so only ratios
matter. The numbers are medians of one thread on a stream of 768 float32 elements per row; the table
names their rows in benchmarks/results/.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from onnxfold.graph import Dim, Shape
from onnxfold.options import Defer, Options, Target

OPERATOR_PS = 500_000
# Targets for which benchmarks/results/defer.csv has medians above 1, and none below 0.99.
MEASURED_CHEAPER: frozenset[Target] = frozenset()
# A product costs as much as this many elements plus its own: benchmarks/results/row_scale_costs.csv
# (Mul, and ScaleRows of the library; one thread).
OPERATOR_ELEMENTS = {Target.ONNX: 3_800, Target.ORT: 3_800, Target.KERNELS: 11_000}


@dataclass(frozen=True, slots=True)
class Costs:
    """Picoseconds per element of the operators that a plan trades against each other.

    ``row``: per row of the tensor to which a vector is added; ``operator``: per additional
    operator, for any row size.
    """

    layer_norm: int
    rms_norm: int
    centring: int
    adds_beta: bool = True  # as a separate Add if no norm adds it
    addition: int = 80  # an Add of a vector as a separate operator, the same on any target
    row: int = 17_000
    operator: int = OPERATOR_PS
    joined_norm: int = 3_700  # SkipLayerNormalization of ONNX Runtime 1.30 and newer
    centring_operators: int = 2
    split: int = 1  # a copied weight costs storage, not time; 1 makes "in place" the first choice

    def saved(self, work: "Work") -> int:
        """Return the savings of a LayerNorm that becomes an RMSNorm, without its beta."""
        return work.elements * (self.layer_norm - self.rms_norm)

    def added(self, work: "Work") -> int:
        """Return the cost of an Add of a vector."""
        return work.elements * self.addition + work.rows * self.row + self.more(1, work)

    def kept_apart(self, work: "Work") -> int:
        """Return the savings of an Add and a norm over the slow operator of their fusion."""
        return work.elements * (self.joined_norm - self.layer_norm - self.addition)

    def uncertain(self, work: "Work") -> int:
        """Return by how much a fold that adds operators may be dearer than the prices say.

        An eighth of the norm: of 256 rows of 768 they say 0.86 of its time, and 0.92 was measured;
        of 64 rows of 384, 0.98 and 1.00. A session that is longer for less is not faster.
        """
        return work.elements * self.layer_norm // 8

    def centred(self, work: "Work") -> int:
        """Return the cost of an inserted centering."""
        return work.elements * self.centring + self.more(self.centring_operators, work)

    def of_elements(self) -> "Costs":
        """Return the prices of elements alone, so that decisions are the same at any size."""
        return replace(self, row=0, operator=0)

    def more(self, operators: int, work: "Work") -> int:
        """Return the cost of operators in addition to their elements, 0 if sizes are unknown."""
        return operators * self.operator if work.fixed else 0


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an operator: the numbers of elements and rows, and whether sizes are ``fixed``.

    Unknown sizes count as 1, so that elements and rows are per unit of them.
    """

    elements: int
    rows: int
    fixed: bool


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


# From benchmarks/kernels.py, float32, 768 elements per row, rounded; only ratios matter. For
# kernels: rms, layer and center, with and without an addition, of the kernels; for others: rms,
# layer, center (as ReduceMean and Sub) and bias (the Add of a vector, 100 with its rows) of ONNX
# Runtime. The costs of a row and an operator are from benchmarks/fixed_costs.py.
_COSTS = {
    Target.KERNELS: Costs(
        layer_norm=130, rms_norm=100, centring=115, adds_beta=False, centring_operators=1
    ),
    Target.ONNX: Costs(layer_norm=340, rms_norm=190, centring=250),
    Target.ORT: Costs(layer_norm=340, rms_norm=190, centring=250),
}


def costs_of(target: Target) -> Costs:
    """Return the cost table of ``target``."""
    return _COSTS[target]


def is_wanted(settings: Options) -> bool:
    """Whether norms are deferred, or stay deferred; otherwise they are computed in place."""
    if settings.defer is Defer.AUTO:
        return settings.target in MEASURED_CHEAPER
    return settings.defer is Defer.ALL
