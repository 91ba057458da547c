"""Estimated run time of what a plan adds and saves, in picoseconds per element.

Symbolic dimensions count once: they are the same for all tensors of a stream, so only ratios
matter.  The numbers are medians of one thread on a stream of 768 float32 elements per row; the
rows of benchmarks/results/ that they come from are named beside the table.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from onnxfold.graph import Dim, Shape
from onnxfold.options import Target

OPERATOR_PS = 500_000


@dataclass(frozen=True, slots=True)
class Costs:
    """Picoseconds of the operators that a plan trades against each other: of each element first.

    ``row``: of each row of what a vector is added to, and ``operator``: of one operator more, both
    whatever the size of a row.
    """

    layer_norm: int
    rms_norm: int
    centring: int
    adds_beta: bool = True  # by an Add of its own, where no norm itself does
    addition: int = 80  # an Add of a vector as an operator of its own, the same on any target
    row: int = 17_000
    operator: int = OPERATOR_PS
    joined_norm: int = 3_700  # SkipLayerNormalization of ONNX Runtime 1.30 and newer
    centring_operators: int = 2
    split: int = 1  # a copied weight costs storage, not time; 1 keeps "in place" the first choice

    def saved(self, work: "Work") -> int:
        """Return what a LayerNorm saves when it becomes an RMSNorm, without its beta."""
        return work.elements * (self.layer_norm - self.rms_norm)

    def added(self, work: "Work") -> int:
        """Return what an Add of a vector takes."""
        return work.elements * self.addition + work.rows * self.row + self.more(1, work)

    def kept_apart(self, work: "Work") -> int:
        """Return what an Add and a norm save where a session would make one slow operator."""
        return work.elements * (self.joined_norm - self.layer_norm - self.addition)

    def centred(self, work: "Work") -> int:
        """Return what an inserted centring takes."""
        return work.elements * self.centring + self.more(self.centring_operators, work)

    def of_elements(self) -> "Costs":
        """Return the prices of elements alone: what is exact is worth as much at any size."""
        return replace(self, row=0, operator=0)

    def more(self, operators: int, work: "Work") -> int:
        """Return what operators take beside their elements, 0 where nobody knows the sizes."""
        return operators * self.operator if work.fixed else 0


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator works on: rows of so many elements in all, of sizes that are ``fixed``.

    Any size that is not stands for 1, so that rows and elements are those for each of it.
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
    """Return a price as reasons and reports tell it."""
    return f"{picoseconds / 1e6:.3g} µs"


def elements(shape: Shape | None) -> int:
    """Return the number of elements with every symbolic or unknown dimension counted as 1."""
    return prod(dim for dim in shape or () if isinstance(dim, int))


def work_beside(shape: Shape | None, size: int, symbols: Collection[Dim], most: int) -> Work:
    """Return the work beside something else, which has ``symbols`` counted as 1.

    Any other symbol stands for what nobody knows: such a shape has ``most`` elements at least.
    """
    found = work(shape, size)
    if all(isinstance(dim, int) or dim in symbols for dim in shape or ()):
        return found
    count = max(found.elements, most)
    return Work(count, count // max(size, 1), fixed=False)


# Of benchmarks/kernels.py, float32, 768 elements per row, rounded; only their ratios count.  For
# kernels operations rms, layer and center, with and without an addition, of the kernels; for others
# rms, layer, center (the ReduceMean and Sub that it is spelled as) and bias (the Add of a vector,
# 100 with its rows) of ONNX Runtime.  What a row and an operator cost: benchmarks/fixed_costs.py.
_COSTS = {
    Target.KERNELS: Costs(
        layer_norm=130, rms_norm=100, centring=115, adds_beta=False, centring_operators=1
    ),
    Target.ONNX: Costs(layer_norm=340, rms_norm=190, centring=250),
    Target.ORT: Costs(layer_norm=340, rms_norm=190, centring=250),
}


def costs_of(target: Target) -> Costs:
    """Return the cost table that plans for ``target`` use."""
    return _COSTS[target]
