"""Acting: centred weights as arrays, and the one place that mutates a graph."""

from __future__ import annotations

from onnxfold.rewrite.apply import Lowered, Lowering, apply_plan
from onnxfold.rewrite.centre import centred, centred_tensor

__all__ = ["Lowered", "Lowering", "apply_plan", "centred", "centred_tensor"]
