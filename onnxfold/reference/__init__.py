"""A streaming interpreter of ONNX models in numpy, in float64 or in the model's own types."""

from __future__ import annotations

from onnxfold.reference.drawn import is_drawn
from onnxfold.reference.interpreter import Observer, check_supported, moves_numbers, run
from onnxfold.reference.kernel import BeyondReachError, UnsupportedOperator
from onnxfold.reference.precision import Array, Precision, is_floating, unit_roundoff

__all__ = [
    "Array",
    "BeyondReachError",
    "Observer",
    "Precision",
    "UnsupportedOperator",
    "check_supported",
    "is_drawn",
    "is_floating",
    "moves_numbers",
    "run",
    "unit_roundoff",
]
