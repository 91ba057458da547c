"""Running one op through ONNX Runtime with the library registered, in the three element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from onnxfold.lower.functions import SIGNATURES, Statistics
from onnxfold.runtime import register
from tests.calls import NUMPY_TYPES, call_model
from tests.oracle import Array, Float64, normalised, rounded_sum

__all__ = [
    "TYPES",
    "assert_outputs_right",
    "assert_right",
    "bound",
    "kernel_session",
    "run",
    "run_op",
]

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Half a last place of the tensor type, relative for normal values and absolute for subnormal ones.
UNIT = {ir.DataType.FLOAT: 0.0, ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}
SMALLEST = {
    ir.DataType.FLOAT: 2.0**-149,
    ir.DataType.FLOAT16: 2.0**-25,
    ir.DataType.BFLOAT16: 2.0**-134,
}


@lru_cache(maxsize=256)
def kernel_session(
    name: str, dtype: ir.DataType, *, rank: int = 2, axes: int = 1, epsilon: float = 1e-5
) -> ort.InferenceSession:
    """A session of one call with every dim unknown and no body: only the kernel can run it."""
    shape = [f"d{i}" for i in range(rank)]
    model = call_model(name, shape, dtype, axes=axes, epsilon=epsilon, with_body=False)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    register(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(session: ort.InferenceSession, inputs: Mapping[str, Array], extra: int = 0) -> list[Array]:
    """Outputs of `session`, shaped like X with `extra` columns; bfloat16 travels as raw bits."""
    x = inputs["X"]
    element = ir.DataType.from_numpy(x.dtype).value
    binding = session.io_binding()
    for key, array in inputs.items():
        binding.bind_input(key, "cpu", 0, element, array.shape, array.ctypes.data)
    outputs = []
    for output in session.get_outputs():
        shape = (*x.shape[:-1], x.shape[-1] + extra)
        outputs.append(np.empty(shape, x.dtype))
        binding.bind_output(output.name, "cpu", 0, element, shape, outputs[-1].ctypes.data)
    session.run_with_iobinding(binding)
    return outputs


def run_op(
    name: str, inputs: Mapping[str, Array], *, axes: int = 1, epsilon: float = 1e-5
) -> list[Array]:
    """The outputs of op `name`'s kernel."""
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    assert inputs["X"].dtype == NUMPY_TYPES[dtype]
    session = kernel_session(name, dtype, rank=inputs["X"].ndim, axes=axes, epsilon=epsilon)
    return run(session, inputs, SIGNATURES[name].statistics is Statistics.CRMS_FULL)


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


def assert_right(
    name: str, inputs: Mapping[str, Array], *, axes: int = 1, epsilon: float = 1e-5
) -> None:
    """The kernel gives what float64 gives: see assert_outputs_right."""
    outputs = run_op(name, inputs, axes=axes, epsilon=epsilon)
    assert_outputs_right(name, inputs, outputs, axes=axes, epsilon=epsilon)


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
