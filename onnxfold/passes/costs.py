"""Estimated run time of what a plan adds and saves, in picoseconds per element.

Symbolic dimensions count once: they are the same for all tensors of a stream, so only ratios
matter.  The numbers are medians of one thread on a stream of 768 float32 elements per row; the
rows of benchmarks/results/ that they come from are named beside the table.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from onnxfold.graph import Dim, Shape
from onnxfold.options import Target


@dataclass(frozen=True, slots=True)
class Costs:
    """Picoseconds per element of the operators that a plan trades against each other."""

    layer_norm: int
    rms_norm: int
    bias: int  # what beta costs an RMS norm: an addition, 0 where the norm itself adds it
    centring: int
    addition: int = 100  # an Add of a vector as an operator of its own, the same on any target
    split: int = 1  # a copied weight costs storage, not time; 1 keeps "in place" the first choice

    def gain(self, count: int, has_bias: bool) -> int:
        """Return what a LayerNorm of ``count`` elements saves when it becomes an RMSNorm."""
        return count * (self.layer_norm - self.rms_norm - (self.bias if has_bias else 0))


def elements(shape: Shape | None) -> int:
    """Return the number of elements with every symbolic or unknown dimension counted as 1."""
    return prod(dim for dim in shape or () if isinstance(dim, int))


def elements_beside(shape: Shape | None, symbols: Collection[Dim], most: int) -> int:
    """Return the number of elements beside something else, which has ``symbols`` counted as 1.

    Any other symbol stands for what nobody knows: such a shape has ``most`` elements at least.
    """
    known = all(isinstance(dim, int) or dim in symbols for dim in shape or ())
    return elements(shape) if known else max(elements(shape), most)


# Of benchmarks/kernels.py, float32, 768 elements per row, rounded; only their ratios count.  For
# kernels operations rms, layer and center, with and without an addition, of the kernels; for others
# rms, layer, center (the ReduceMean and Sub that it is spelled as) and bias (the Add of a vector)
# of ONNX Runtime.
_COSTS = {
    Target.KERNELS: Costs(layer_norm=130, rms_norm=100, bias=0, centring=115),
    Target.ONNX: Costs(layer_norm=340, rms_norm=190, bias=100, centring=250),
    Target.ORT: Costs(layer_norm=340, rms_norm=190, bias=100, centring=250),
}


def costs_of(target: Target) -> Costs:
    """Return the cost table that plans for ``target`` use."""
    return _COSTS[target]
