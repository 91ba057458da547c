"""Constants, shapes, casts and ranges: the sources of types and sizes."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.check.reference.kernel import Call, kernel
from onnxfold.check.reference.precision import (
    Array,
    Precision,
    is_floating,
    is_quantized_float,
)


def cast_to(x: Array, dtype: np.dtype[Any], precision: Precision, *, saturate: bool) -> Array:
    """The array in `dtype`.

    Under FLOAT64 a cast among the wide floats does not round; a cast to eight bits or fewer does,
    because it is quantization.
    """
    if is_quantized_float(dtype):
        wide = x.astype(np.float32)
        if saturate:
            # finfo does not know the types of ml_dtypes.
            limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # no types
            wide = np.clip(wide, -limit, limit)
        return wide.astype(dtype)
    if precision is Precision.FLOAT64 and is_floating(dtype):
        return x.astype(np.float64, copy=False)
    return x.astype(dtype, copy=False)


def _numpy_dtype(call: Call, number: int) -> np.dtype[Any]:
    kind = ir.DataType(number)
    if kind in (ir.DataType.STRING, ir.DataType.FLOAT8E8M0):
        raise call.unsupported(f"{kind.name} as a type to cast to")
    return kind.numpy()


@kernel("Cast", raw=True)
def cast_kernel(call: Call, x: Array) -> Array:
    if x.dtype.kind in "OUS":
        x = x.astype(np.float64)
    dtype = _numpy_dtype(call, call.integer("to", 0))
    return cast_to(x, dtype, call.precision, saturate=bool(call.integer("saturate", 1)))


@kernel("CastLike", raw=True)
def cast_like(call: Call, x: Array, target: Array) -> Array:
    saturate = bool(call.integer("saturate", 1))
    return cast_to(x, target.dtype, call.precision, saturate=saturate)


@kernel("Constant", raw=True)
def constant(call: Call) -> Array:
    tensor = call.tensor("value")
    if tensor is not None:
        return tensor.numpy()
    for name, kind in (("value_float", np.float32), ("value_int", np.int64)):
        if call.has(name):
            return np.asarray(call.attributes[name].value, dtype=kind)
        if call.has(f"{name}s"):
            return np.asarray(call.attributes[f"{name}s"].value, dtype=kind)
    for name in ("value_string", "value_strings"):
        if call.has(name):
            return np.asarray(call.attributes[name].value, dtype=object)
    raise call.unsupported("a sparse constant")


@kernel("ConstantOfShape", raw=True)
def constant_of_shape(call: Call, shape: Array) -> Array:
    call.check_size(shape)
    tensor = call.tensor("value")
    value = np.zeros(1, np.float32) if tensor is None else tensor.numpy()
    return np.full(tuple(int(d) for d in shape), value.reshape(-1)[0], dtype=value.dtype)


@kernel("Shape", raw=True)
def shape_kernel(call: Call, x: Array) -> Array:
    end = call.integer("end", x.ndim)
    return np.asarray(x.shape[call.integer("start", 0) : end], dtype=np.int64)


@kernel("Size", raw=True)
def size(call: Call, x: Array) -> Array:
    return np.asarray(x.size, dtype=np.int64)


@kernel("Range")
def range_kernel(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
    call.check_size([float(abs((last - first) / step))])
    count = max(int(np.ceil((last - first) / step)), 0)
    return np.asarray(first + np.arange(count, dtype=start.dtype) * step, dtype=start.dtype)


@kernel("EyeLike")
def eye_like(call: Call, x: Array) -> Array:
    dtype = _numpy_dtype(call, call.integer("dtype", 0)) if call.has("dtype") else x.dtype
    rows, columns = x.shape
    return np.eye(rows, columns, k=call.integer("k", 0)).astype(dtype)


@kernel("NonZero", raw=True)
def non_zero(call: Call, x: Array) -> Array:
    return np.asarray(np.nonzero(np.atleast_1d(x)), dtype=np.int64)
