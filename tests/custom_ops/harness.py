"""Running one op through ONNX Runtime with the library registered, in the three element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from onnxfold.runtime.library import register
from tests.calls import NUMPY_TYPES, call_model, output_forms
from tests.custom_ops.bounds import CODES, TYPES, assert_outputs_right, bound
from tests.oracle import Array

__all__ = [
    "CODES",
    "TYPES",
    "assert_outputs_right",
    "assert_right",
    "bound",
    "kernel_session",
    "run",
    "run_op",
]


@lru_cache(maxsize=256)
def kernel_session(
    name: str,
    dtype: ir.DataType,
    *,
    rank: int = 2,
    axes: int = 1,
    epsilon: float = 1e-5,
    code: ir.DataType = ir.DataType.INT8,
) -> ort.InferenceSession:
    """A session of one call with every dim unknown and no body: only the kernel can run it."""
    shape = [f"d{i}" for i in range(rank)]
    model = call_model(name, shape, dtype, axes=axes, epsilon=epsilon, with_body=False, code=code)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    register(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(
    session: ort.InferenceSession,
    inputs: Mapping[str, Array],
    forms: Sequence[tuple[tuple[int, ...], np.dtype[np.generic]]],
) -> list[Array]:
    """Outputs of `session` of these shapes and types; bfloat16 and float8 travel as raw bits."""
    binding = session.io_binding()
    for key, array in inputs.items():
        element = ir.DataType.from_numpy(array.dtype).value
        binding.bind_input(key, "cpu", 0, element, array.shape, array.ctypes.data)
    outputs: list[Array] = []
    for output, (shape, dtype) in zip(session.get_outputs(), forms, strict=True):
        outputs.append(np.empty(shape, dtype))
        element, place = ir.DataType.from_numpy(dtype).value, outputs[-1].ctypes.data
        binding.bind_output(output.name, "cpu", 0, element, shape, place)
    session.run_with_iobinding(binding)
    return outputs


def run_op(
    name: str, inputs: Mapping[str, Array], *, axes: int = 1, epsilon: float = 1e-5
) -> list[Array]:
    """The outputs of op `name`'s kernel."""
    dtype = ir.DataType.from_numpy(inputs["X"].dtype)
    assert inputs["X"].dtype == NUMPY_TYPES[dtype]
    code = ir.DataType.INT8
    if "y_zero_point" in inputs:
        code = ir.DataType.from_numpy(inputs["y_zero_point"].dtype)
    rank = inputs["X"].ndim
    session = kernel_session(name, dtype, rank=rank, axes=axes, epsilon=epsilon, code=code)
    return run(session, inputs, output_forms(name, inputs, axes))


def assert_right(
    name: str, inputs: Mapping[str, Array], *, axes: int = 1, epsilon: float = 1e-5
) -> None:
    """The kernel gives what float64 gives: see assert_outputs_right."""
    outputs = run_op(name, inputs, axes=axes, epsilon=epsilon)
    assert_outputs_right(name, inputs, outputs, axes=axes, epsilon=epsilon)
