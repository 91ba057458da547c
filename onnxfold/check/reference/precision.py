"""The two precisions in which the interpreter runs a model, and what they mean for a dtype."""

import enum
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_HALVES = frozenset({np.dtype(np.float16), _BFLOAT16})
# Formats of eight bits and fewer are quantization: part of the function, not rounding noise.
_QUANTIZED = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
    )
)
# Half the distance from 1 to the next number: rounding to nearest errs by at most this, relatively.
_UNIT_ROUNDOFF = {
    np.dtype(np.float16): 2.0**-11,
    _BFLOAT16: 2.0**-8,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float64): 2.0**-53,
}


class Precision(enum.Enum):
    """FLOAT64 represents every tensor of 16 and more bits in float64, for the truth.

    NATIVE computes each operator in the types of the model; 16-bit floats are computed in float32
    and rounded to the type after each op, as runtimes do.
    """

    FLOAT64 = "float64"
    NATIVE = "native"


def is_half(dtype: np.dtype[Any]) -> bool:
    return dtype in _HALVES


def is_quantized_float(dtype: np.dtype[Any]) -> bool:
    return dtype in _QUANTIZED


def is_code(dtype: np.dtype[Any]) -> bool:
    """Whether numbers have eight bits or fewer, so that rounding to them takes large steps."""
    return dtype.itemsize == 1 and dtype.kind not in "bSU"


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether this is a real floating type of ONNX, not complex, integer, boolean or string."""
    return dtype.kind == "f" or dtype in _HALVES or dtype in _QUANTIZED


def is_wide_float(dtype: np.dtype[Any]) -> bool:
    """Whether this is a floating type of 16 bits or more, whose last places are rounding noise."""
    return is_floating(dtype) and not is_quantized_float(dtype)


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Return the relative error bound of rounding to a wide floating type: 2**-24 for float32.

    Raises KeyError for other types than float16, bfloat16, float32 and float64.
    """
    return _UNIT_ROUNDOFF[np.dtype(dtype)]


def carried(array: Array, precision: Precision) -> Array:
    """Return the array in the type in which `precision` represents it between nodes."""
    if precision is Precision.FLOAT64 and is_wide_float(array.dtype):
        return array.astype(np.float64, copy=False)
    return array
