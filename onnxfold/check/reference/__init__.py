"""A streaming interpreter of ONNX models in numpy, in float64 or in the model's own types."""

from onnxfold.check.reference.interpreter import (
    NodeRuns,
    Observer,
    check_supported,
    is_supported,
    moves_numbers,
    run,
    run_nodes,
)
from onnxfold.check.reference.kernel import (
    Array,
    Precision,
    ResourceLimitError,
    UnsupportedOperator,
    is_code,
    is_floating,
    is_quantized_float,
    is_stochastic,
    is_wide_float,
    unit_roundoff,
)

__all__ = [
    "Array",
    "NodeRuns",
    "Observer",
    "Precision",
    "ResourceLimitError",
    "UnsupportedOperator",
    "check_supported",
    "is_code",
    "is_floating",
    "is_quantized_float",
    "is_stochastic",
    "is_supported",
    "is_wide_float",
    "moves_numbers",
    "run",
    "run_nodes",
    "unit_roundoff",
]
