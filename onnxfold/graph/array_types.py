"""The types of the arrays of constants, and the floating types that models compute in."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]
# Bits of the exponent, and of the significand with the leading one.
_BITS = {
    ir.DataType.FLOAT16: (5, 11),
    ir.DataType.BFLOAT16: (8, 8),
    ir.DataType.FLOAT: (8, 24),
    ir.DataType.DOUBLE: (11, 53),
}
# The types in which norms compute, and of editable weights.
FLOATS = frozenset(_BITS)
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def digits(dtype: ir.DataType | None) -> int:
    """Return the binary digits of a significand; 0 for any other type."""
    return 0 if dtype is None or dtype not in _BITS else _BITS[dtype][1]


def smallest_normal(dtype: ir.DataType) -> float:
    """Return the smallest number that has all digits of a float type."""
    exponent, _ = _BITS[dtype]
    return float(2.0 ** (2 - 2 ** (exponent - 1)))


def is_narrowing(source: ir.DataType | None, target: ir.DataType | None) -> bool | None:
    """Whether a Cast between float types may round; None for other casts."""
    if source not in _BITS or target not in _BITS:
        return None
    return any(after < before for before, after in zip(_BITS[source], _BITS[target], strict=True))
