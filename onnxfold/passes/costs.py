"""Estimated run time of what a plan adds and saves, in picoseconds per element.

Symbolic dimensions count once: they are the same for all tensors of a stream, so only ratios
matter.  The numbers are medians of one thread on a stream of 768 float32 elements per row; the
rows of benchmarks/results/ that they come from are named beside each table in lower/targets.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from onnxfold.graph import Shape

__all__ = ["Costs", "elements"]


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
