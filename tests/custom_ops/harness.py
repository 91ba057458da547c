"""Running one op through ONNX Runtime with the library registered, in the three element types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from onnxfold.operators.functions import SIGNATURES, Statistics
from onnxfold.runtime.library import register
from tests.calls import NUMPY_TYPES, call_model
from tests.custom_ops.bounds import TYPES, assert_outputs_right, bound
from tests.oracle import Array

__all__ = [
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


def assert_right(
    name: str, inputs: Mapping[str, Array], *, axes: int = 1, epsilon: float = 1e-5
) -> None:
    """The kernel gives what float64 gives: see assert_outputs_right."""
    outputs = run_op(name, inputs, axes=axes, epsilon=epsilon)
    assert_outputs_right(name, inputs, outputs, axes=axes, epsilon=epsilon)
