"""Quantized operators: rounding to integers is part of the function, in any precision."""

# ruff: noqa: PLR0913, PLR0917  (the inputs of an operator are the arguments of its kernel)

from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.check.reference.kernel import Array, Call, Precision, is_floating, kernel
from onnxfold.check.reference.kernels.convolution import convolve, padded, windows_of
from onnxfold.check.reference.kernels.layout import cast_to
from onnxfold.check.reference.kernels.reduction import integer_matmul

_PART = 1 << 20  # numbers of a weight that are brought back from their codes at a time


def _wide(call: Call, x: Array) -> Array:
    """Return the array in the compute type: float64 for the truth, otherwise at least float32."""
    if call.precision is Precision.FLOAT64:
        return x.astype(np.float64)
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def _along(call: Call, v: Array, x: Array) -> Array:
    """A scale or zero point (one number, one per index of `axis`, or one per block) spread to x."""
    if v.size == 1:
        return v.reshape(())
    axis = call.integer("axis", 1) % x.ndim
    block = call.integer("block_size", 0)
    if block and v.ndim == x.ndim:
        return np.repeat(v, block, axis=axis).take(range(x.shape[axis]), axis=axis)
    return v.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def _saturated(x: Array, dtype: np.dtype[Any]) -> Array:
    """Clamp rounded values to an integer type."""
    low, high = _integer_range(dtype)
    return np.clip(x, low, high).astype(dtype)


def _integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it
    return int(info.min), int(info.max)


def _quantized(call: Call, x: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    if is_floating(dtype):
        saturate = bool(call.integer("saturate", 1))
        return cast_to(x, dtype, call.precision, saturate=saturate)
    rounded = np.rint(x)
    return _saturated(rounded if zero is None else rounded + zero.astype(x.dtype), dtype)


@kernel("QuantizeLinear", raw=True)
def quantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """saturate(round(x/scale) + zero), ties to even."""
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    if zero is None and call.integer("output_dtype", 0):
        dtype = ir.DataType(call.integer("output_dtype", 0)).numpy()
    ratio = _wide(call, x) / _wide(call, _along(call, scale, x))
    return _quantized(call, ratio, None if zero is None else _along(call, zero, x), dtype)


@kernel("DequantizeLinear", raw=True)
def dequantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """(x - zero) scale, in the scale's type or `output_dtype`."""
    factor = _wide(call, _along(call, scale, x))
    offset = 0 if zero is None else _along(call, zero, x).astype(factor.dtype)
    y = np.asarray((x.astype(factor.dtype) - offset) * factor)
    number = call.integer("output_dtype", 0)
    dtype = ir.DataType(number).numpy() if number else scale.dtype
    return cast_to(y, dtype, call.precision, saturate=True)


def _dynamic(x: Array) -> tuple[Array, Array, Array]:
    """Quantize x to uint8; return the codes, scale and zero point, with 0 in range."""
    high, low = np.max(x, initial=0), np.min(x, initial=0)
    scale = np.asarray((high - low) / 255, dtype=x.dtype)
    scale = np.ones_like(scale) if high == low else scale
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, scale, np.asarray(zero, dtype=np.uint8)


@kernel("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Array) -> tuple[Array, Array, Array]:
    return _dynamic(x)


def _offset(x: Array, zero: Array | None, *, rows: bool = False) -> Array:
    if zero is None:
        return x.astype(np.int16)
    z = zero.astype(np.int16)
    return np.asarray(x.astype(np.int16) - (z[:, None] if rows and z.size > 1 else z))


@kernel("QLinearMatMul", raw=True)
def q_linear_matmul(
    call: Call,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    product = integer_matmul(_offset(a, a_zero, rows=True), _offset(b, b_zero))
    scales = [_wide(call, s) for s in (a_scale, b_scale, y_scale)]
    left = scales[0][:, None] if scales[0].size > 1 else scales[0]
    return _quantized(call, product * (left * scales[1] / scales[2]), y_zero, y_zero.dtype)


@kernel("QLinearConv", raw=True)
def q_linear_conv(
    call: Call,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    b: Array | None = None,
) -> Array:
    windows = windows_of(call, x.shape[2:], w.shape[2:])
    ones = (1,) * (x.ndim - 2)
    xs = x.astype(np.float64) - x_zero.astype(np.float64)
    ws = w.astype(np.float64) - w_zero.astype(np.float64).reshape(-1, 1, *ones)
    total = convolve(padded(xs, windows, 0), ws, windows, call.integer("group", 1))
    if b is not None:
        total = total + b.astype(np.float64).reshape(1, -1, *ones)
    scales = [_wide(call, s) for s in (x_scale, w_scale, y_scale)]
    factor = (scales[0] * scales[1] / scales[2]).reshape(1, -1, *ones)
    return _quantized(call, total.astype(factor.dtype) * factor, y_zero, y_zero.dtype)


@kernel("DynamicQuantizeMatMul", domain="com.microsoft")
def dynamic_quantize_matmul(
    call: Call,
    a: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    quantized, scale, zero = _dynamic(a)
    return matmul_integer_to_float(call, quantized, b, scale, b_scale, zero, b_zero, bias)


@kernel("MatMulIntegerToFloat", domain="com.microsoft", result_like=(2,))
def matmul_integer_to_float(
    call: Call,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    product = integer_matmul(_offset(a, a_zero), _offset(b, b_zero))
    y = np.asarray(product * (a_scale * b_scale), dtype=a_scale.dtype)
    return y if bias is None else np.asarray(y + bias)


def unpacked(x: Array, bits: int) -> Array:
    """The numbers of `bits` bits in bytes, low bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (x[..., None] >> shifts) & np.uint8(2**bits - 1)
    return cast("Array", parts.reshape(*x.shape[:-1], -1))


@kernel("MatMulNBits", domain="com.microsoft")
def matmul_n_bits(
    call: Call,
    a: Array,
    b: Array,
    scales: Array,
    zeros: Array | None = None,
    order: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Product of a: [..., K] and the transpose of b: [N, K], which is packed in blocks along K."""
    if order is not None and order.size:
        raise call.unsupported("MatMulNBits with g_idx")
    bits, block = call.integer("bits", 4), call.integer("block_size", 32)
    inner, out = call.integer("K", 0), call.integer("N", 0)
    blocks = -(-inner // block)
    packed, factors = b.reshape(out, blocks, -1), scales.reshape(out, blocks, 1)
    if zeros is None:
        offset = np.full((out, blocks), 2 ** (bits - 1), dtype=scales.dtype)
    elif zeros.dtype == np.uint8:
        offset = unpacked(zeros.reshape(out, -1), bits)[:, :blocks].astype(scales.dtype)
    else:
        offset = zeros.reshape(out, blocks)
    parts = []
    step = max(1, _PART // max(1, inner))
    for rows in (slice(start, start + step) for start in range(0, out, step)):
        weight = unpacked(packed[rows], bits).astype(scales.dtype)
        weight = (weight - offset[rows, :, None]) * factors[rows]
        parts.append(np.matmul(a, weight.reshape(len(weight), -1)[:, :inner].T))
    y = np.concatenate(parts, axis=-1)
    return np.asarray(y if bias is None else y + bias)


@kernel("GatherBlockQuantized", domain="com.microsoft", raw=True)
def gather_block_quantized(
    call: Call, data: Array, indices: Array, scales: Array, zeros: Array | None = None
) -> Array:
    """Rows of a table whose numbers share a scale in blocks of one axis; bytes hold several."""
    bits, block = call.integer("bits", 4), call.integer("block_size", 128)
    axis = call.integer("quantize_axis", 1) % data.ndim
    packed = data.dtype == np.uint8
    at = call.integer("gather_axis", 0)
    codes, factor, offset = (
        None if array is None else np.take(array, indices, axis=at)
        for array in (data, scales, zeros)
    )
    wide = cast("Array", factor).astype(np.result_type(_wide(call, scales)))
    numbers = cast("Array", codes)
    numbers = unpacked(numbers, bits) if packed else numbers
    axis += indices.ndim - 1 if axis > at % data.ndim else 0
    steps = np.arange(numbers.shape[axis]) // block
    spread = np.take(wide, steps, axis=axis)
    if offset is None:
        shift: Array | float = float(2 ** (bits - 1)) if packed else 0.0
    else:
        known = unpacked(offset, bits) if packed else offset
        shift = np.take(known, steps, axis=axis).astype(wide.dtype)
    return np.asarray((numbers.astype(wide.dtype) - shift) * spread)
