"""How far outputs of the kernels may be from float64; the assertion of these bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.operators.functions import SIGNATURES, Output, Statistics
from tests.calls import LEVELS
from tests.oracle import Array, Float64, normalised, rounded_sum

__all__ = ["CODES", "TYPES", "allowed", "assert_outputs_right", "bound"]

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
CODES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.FLOAT8E4M3FN)
# Half a last place of the tensor type, relative for normal values and absolute for subnormal ones.
UNIT = {ir.DataType.FLOAT: 0.0, ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}
SMALLEST = {
    ir.DataType.FLOAT: 2.0**-149,
    ir.DataType.FLOAT16: 2.0**-25,
    ir.DataType.BFLOAT16: 2.0**-134,
}


def bound(name: str, inputs: Mapping[str, Array], y: Float64, norm: Float64, axes: int) -> Float64:
    """How far Y may be from float64: float32 arithmetic, then one rounding to the tensor type.

    2e-6 of the value covers the rounding of up to 16384 terms, the root and the products; what a
    centered value loses is absolute, 5e-6 of a deviation (kernels notes, section 5). A mean is
    good to 2e-6 of the largest element.
    """
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    signature = SIGNATURES[name]
    if signature.output is Output.SCALE:
        return 2e-6 * np.abs(y)  # float32 whatever the type of X
    if signature.statistics is Statistics.ROW:
        return _bound_of_rows(inputs, y, norm)
    rounding: Float64 = UNIT[dtype] * np.abs(y) + SMALLEST[dtype]
    if SIGNATURES[name].statistics is Statistics.CENTER:
        x = np.abs(inputs["X"].astype(np.float64))
        over = tuple(range(-axes, 0))
        rounding += 2e-6 * np.max(x, axis=over, keepdims=True, initial=0.0)
        return rounding
    scale = np.abs(inputs["scale"].astype(np.float64)) if "scale" in inputs else np.float64(1)
    largest = np.max(scale, initial=0.0)
    absolute = 5e-6 if SIGNATURES[name].statistics is Statistics.LAYER else 1e-6
    if "row_scale" in inputs:
        # A kernel that does not output Sum may round it differently from the oracle.
        squares = np.mean(rounded_sum(inputs).astype(np.float64) ** 2, axis=-1, keepdims=True)
        rms = np.sqrt(np.maximum(squares, 1e-30))
        rounding = rounding + (0 if signature.with_sum else 2) * _error_of_sum(inputs) / rms * scale
    total = rounding + 2e-6 * (np.abs(norm) * scale + np.abs(y)) + absolute * largest
    if SIGNATURES[name].statistics is Statistics.CRMS_FULL:
        # The last element is a sum, good to 1e-7 of the sum of magnitudes, in rms units like Y.
        magnitudes = np.sum(np.abs(norm[..., :-1]), axis=-1)
        total[..., -1] += 1e-7 * magnitudes * largest
    return total


def _bound_of_rows(inputs: Mapping[str, Array], y: Float64, norm: Float64) -> Float64:
    """Roundings of the product, the sum, and the activation's input and output.

    No activation is steeper than 1.13; they are good to 2e-7 of their input.
    """
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    bias = np.abs(inputs["bias"].astype(np.float64)) if "bias" in inputs else np.float64(0)
    terms = np.abs(norm) + bias
    inner = 2.0**-22 * terms + 1.13 * (UNIT[dtype] * terms + SMALLEST[dtype])
    result: Float64 = inner + 2e-7 * terms + UNIT[dtype] * np.abs(y) + SMALLEST[dtype]
    return result


def allowed(
    name: str,
    inputs: Mapping[str, Array],
    *,
    axes: int = 1,
    epsilon: float = 1e-5,
    got: Mapping[str, Array] | None = None,
) -> dict[str, tuple[Float64, Float64]]:
    """Each output in float64, and how far a kernel's may be from it.

    ``got`` are the outputs of the kernel: bounds of values computed from a rounded output, a Sum or
    a Y_scale, then refer to the rounded one.
    """
    signature, given = SIGNATURES[name], got or {}
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    epsilon = float(np.float32(epsilon))
    y, norm = normalised(name, inputs, axes=axes, epsilon=epsilon, total=given.get("Sum"))
    limit = np.broadcast_to(bound(name, inputs, y, norm, axes), y.shape)
    result = {"Y": (y, limit)}
    if signature.with_sum:
        total = rounded_sum(inputs).astype(np.float64)
        result["Sum"] = (total, _error_of_sum(inputs))
    if signature.quantized:
        code = ir.DataType.from_numpy(inputs["y_zero_point"].dtype)
        if "y_scale" in inputs:
            step, error = inputs["y_scale"].astype(np.float64), np.float64(0)
        else:
            over = tuple(range(-axes, 0))
            exact = np.max(np.abs(y), axis=over, keepdims=True, initial=0.0) / LEVELS[code]
            most = np.max(limit, axis=over, keepdims=True, initial=0.0) / LEVELS[code]
            error = most + (UNIT[dtype] + 2.0**-23) * exact + SMALLEST[dtype]
            result["Y_scale"] = exact, error
            step = given["Y_scale"].astype(np.float64) if "Y_scale" in given else exact
            error = error * (not given)
        result["Y"] = _codes(y, limit, step, error, inputs["y_zero_point"])
    return result


def _error_of_sum(inputs: Mapping[str, Array]) -> Float64:
    """None without a product, which may be rounded separately or not."""
    exact = rounded_sum(inputs).astype(np.float64)
    if "row_scale" not in inputs:
        return np.zeros_like(exact)
    terms = np.abs(inputs["X"].astype(np.float64)) * inputs["row_scale"]
    for key in {"linear_bias", "residual"} & set(inputs):
        terms = terms + np.abs(inputs[key].astype(np.float64))
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    # Three roundings of the kernel and of the oracle; those to the type may go the other way.
    error: Float64 = 6 * 2.0**-24 * terms + 2 * UNIT[dtype] * np.abs(exact) + SMALLEST[dtype]
    return error


def _codes(
    y: Float64, limit: Float64, step: Float64, error: Float64, zero_point: Array
) -> tuple[Float64, Float64]:
    """Codes before they are rounded, clipped: a rounding is half a step, of float8 half a place."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exact, zero = y / step, zero_point.astype(np.float64)
        slack = (limit + np.abs(exact) * error) / step + 2.0**-22 * np.abs(exact)
    if zero_point.dtype.kind not in "iu":
        return np.clip(exact, -448, 448), np.maximum(2.0**-4 * np.abs(exact), 2.0**-10) + slack
    low, high = np.iinfo(zero_point.dtype).min, np.iinfo(zero_point.dtype).max
    return np.clip(exact + zero, low, high), 0.5 + slack


def assert_outputs_right(
    name: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[Array],
    *,
    axes: int = 1,
    epsilon: float = 1e-5,
) -> None:
    """Every output within its bound of float64, NaN where float64 has NaN; Sum bit for bit."""
    got = dict(zip(SIGNATURES[name].outputs, outputs, strict=True))
    for key, (exact, limit) in allowed(name, inputs, axes=axes, epsilon=epsilon, got=got).items():
        found = got[key].astype(np.float64)
        assert found.shape == exact.shape
        # A type of codes without NaN has its least number for it.
        nan = np.isnan(exact) & (np.isnan(found) | (got[key].dtype.kind in "iu"))
        with np.errstate(invalid="ignore"):  # of infinities
            wrong = ~((np.abs(found - exact) <= limit) | (found == exact) | nan)
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong))
            raise AssertionError(
                f"{name} {key} {inputs['X'].dtype} {inputs['X'].shape}: {wrong.sum()} of "
                f"{wrong.size} wrong, first at {at}: {found[at]!r}, float64 {exact[at]!r}, "
                f"bound {np.broadcast_to(limit, exact.shape)[at]!r}"
            )
    if SIGNATURES[name].with_sum and "row_scale" not in inputs:
        assert got["Sum"].tobytes() == rounded_sum(inputs).tobytes()
