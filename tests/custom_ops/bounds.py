"""How far outputs of the kernels may be from float64; the assertion that they are no farther."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.operators.functions import SIGNATURES, Statistics
from tests.oracle import Array, Float64, normalised, rounded_sum

__all__ = ["TYPES", "assert_outputs_right", "bound"]

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
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
    centred value loses is absolute, 5e-6 of a deviation (kernels notes, section 5). A mean alone is
    good to 2e-6 of the largest element.
    """
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    rounding: Float64 = UNIT[dtype] * np.abs(y) + SMALLEST[dtype]
    if SIGNATURES[name].statistics is Statistics.CENTER:
        x = np.abs(inputs["X"].astype(np.float64))
        over = tuple(range(-axes, 0))
        rounding += 2e-6 * np.max(x, axis=over, keepdims=True, initial=0.0)
        return rounding
    scale = np.abs(inputs["scale"].astype(np.float64)) if "scale" in inputs else np.float64(1)
    largest = np.max(scale, initial=0.0)
    absolute = 5e-6 if SIGNATURES[name].statistics is Statistics.LAYER else 1e-6
    total = rounding + 2e-6 * (np.abs(norm) * scale + np.abs(y)) + absolute * largest
    if SIGNATURES[name].statistics is Statistics.CRMS_FULL:
        # The last element is a sum, good to 1e-7 of the sum of magnitudes, in rms units like Y.
        magnitudes = np.sum(np.abs(norm[..., :-1]), axis=-1)
        total[..., -1] += 1e-7 * magnitudes * largest
    return total


def assert_outputs_right(
    name: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[Array],
    *,
    axes: int = 1,
    epsilon: float = 1e-5,
) -> None:
    """Y within its bound of float64, NaN where float64 has NaN; Sum equal bit for bit."""
    y, norm = normalised(name, inputs, axes=axes, epsilon=float(np.float32(epsilon)))
    got = outputs[0].astype(np.float64)
    assert got.shape == y.shape
    limit = np.broadcast_to(bound(name, inputs, y, norm, axes), y.shape)
    wrong = ~((np.abs(got - y) <= limit) | (got == y) | (np.isnan(got) & np.isnan(y)))
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise AssertionError(
            f"{name} {inputs['X'].dtype} {inputs['X'].shape}: {wrong.sum()} of {wrong.size} wrong, "
            f"first at {at}: {got[at]!r}, float64 {y[at]!r}, bound {limit[at]!r}"
        )
    if SIGNATURES[name].with_sum:
        assert outputs[1].tobytes() == rounded_sum(inputs).tobytes()
