"""Acting: centred weights as arrays, and the one place that mutates a graph."""

from __future__ import annotations

from onnxfold.rewrite.apply import (
    Applied,
    Fusion,
    Lowered,
    Lowering,
    apply_fusions,
    apply_plan,
    unfit_weights,
)
from onnxfold.rewrite.centre import centred, centred_tensor

__all__ = [
    "Applied",
    "Fusion",
    "Lowered",
    "Lowering",
    "apply_fusions",
    "apply_plan",
    "centred",
    "centred_tensor",
    "unfit_weights",
]
