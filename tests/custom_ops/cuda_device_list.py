"""Checks for a GPU and not an emulation: ON_DEVICE_ALONE, in addition to CHECKS of cuda_list.py.

A check that the machine has no room or software for raises NotHereError.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tests.calls import random_inputs
from tests.custom_ops.bounds import assert_outputs_right
from tests.custom_ops.cuda_kernels import Arguments, CudaMemory, Kernels
from tests.custom_ops.cuda_list import Check
from tests.custom_ops.fake_runtime import Runtime
from tests.custom_ops.registered import Call, assert_every_op_right

__all__ = ["ON_DEVICE_ALONE", "NotHereError"]


class NotHereError(Exception):
    """The check cannot be made on this machine, and why."""


def more_elements_than_32_bits_count(kernels: Kernels, thorough: bool) -> None:
    """More than 2^31 elements: the first rows, those around the border, and the last."""
    del thorough
    runtime = CudaMemory().runtime
    name, dtype = "LayerNorm", ir.DataType.FLOAT16
    rows, size = 140_000, 16_384
    size_bytes = rows * size * 2
    free, _ = runtime.memGetInfo()
    if free < 2.5 * size_bytes:
        raise NotHereError(f"needs {2.5 * size_bytes / 1e9:.0f} GB of free device memory")
    block = random_inputs(name, (1000, size), dtype)["X"]
    got = np.empty_like(block)
    x, y = runtime.malloc(size_bytes), runtime.malloc(size_bytes)
    try:
        for begin in range(0, rows, 1000):
            runtime.memcpy(x + begin * size * 2, block.ctypes.data, block.nbytes, 1)
        kernels.call(name, dtype, Arguments(x=x, y=y, rows=rows, size=size, epsilon=1e-5))
        for begin in (0, 131_000, rows - 1000):
            runtime.memcpy(got.ctypes.data, y + begin * size * 2, got.nbytes, 2)
            assert_outputs_right(name, {"X": block}, [got])
    finally:
        runtime.free(x)
        runtime.free(y)


def a_captured_graph_reads_new_contents(kernels: Kernels, thorough: bool) -> None:
    """A call can be captured, and its replay sees what the inputs hold by then."""
    del thorough
    for shape in ((300, 1000), (2, 65_536)):  # a block for each row, and many for each
        assert_captured(kernels, shape)


def assert_captured(kernels: Kernels, shape: tuple[int, int]) -> None:
    import cupy

    name, dtype = "AddLayerNormWithSum", ir.DataType.FLOAT16
    first, second = (random_inputs(name, shape, dtype, seed=seed) for seed in (0, 1))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        buffers = {key: cupy.asarray(array) for key, array in first.items()}
        y, total = cupy.empty_like(buffers["X"]), cupy.empty_like(buffers["X"])
        tensors = {"x": buffers["X"], "residual": buffers["residual"], "y": y, "sum": total}
        pointers = {key: int(tensor.data.ptr) for key, tensor in tensors.items()}
        arguments = Arguments(rows=shape[0], size=shape[1], epsilon=1e-5, **pointers)
        # Once before: a kernel is loaded when it first runs, which no capture allows.
        kernels.call(name, dtype, arguments, stream=stream.ptr)
        stream.begin_capture()
        kernels.call(name, dtype, arguments, stream=stream.ptr)
        graph = stream.end_capture()
        for inputs in (second, first):
            for key, array in inputs.items():
                buffers[key].set(array)
            graph.launch(stream)
            stream.synchronize()
            assert_outputs_right(name, inputs, [y.get(), total.get()])


def pretended_runtime(kernels: Kernels) -> Runtime:
    library = kernels.path.with_name("libonnxfold_ops_cuda.so")
    if not library.exists():
        raise NotHereError(f"{library.name} is not built")
    return Runtime(str(library))


def every_op_runs_as_onnx_runtime_calls_it(kernels: Kernels, thorough: bool) -> None:
    """By a pretended one, on streams and devices that the thread was not told of."""
    del thorough
    import cupy

    runtime = pretended_runtime(kernels)
    for device in range(min(2, cupy.cuda.runtime.getDeviceCount())):
        with cupy.cuda.Device(device):
            stream = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.Device(0):
            assert_every_op_right(runtime, CudaMemory(device), device=device, stream=stream.ptr)
            assert cupy.cuda.runtime.getDevice() == 0


def onnx_runtime_s_call_is_captured(kernels: Kernels, thorough: bool) -> None:
    """A call of the library for ONNX Runtime, on a stream of CuPy's copy of the CUDA runtime."""
    del thorough
    import cupy

    name = "AddLayerNormAffineWithSum"
    inputs = random_inputs(name, (300, 1000), ir.DataType.FLOAT16)
    call = Call(pretended_runtime(kernels), CudaMemory(), name, inputs)
    stream = cupy.cuda.Stream(non_blocking=True)
    assert call.run(device=0, stream=stream.ptr) is None  # loads the kernel
    call = Call(call.runtime, CudaMemory(), name, inputs)  # whose outputs nothing has written
    with stream:
        stream.begin_capture()
        assert call.run(device=0, stream=stream.ptr) is None
        graph = stream.end_capture()
        graph.launch(stream)
    assert_outputs_right(name, inputs, call.outputs())


def onnx_runtime_runs_every_op_on_cuda(kernels: Kernels, thorough: bool) -> None:
    """Kernels against bodies, in sessions of ONNX Runtime on CUDA."""
    del kernels, thorough
    import onnxruntime as ort

    from onnxfold.runtime.library import CUDA_PROVIDERS, self_test

    if CUDA_PROVIDERS[0] not in ort.get_available_providers():
        raise NotHereError(f"onnxruntime {ort.__version__} has no {CUDA_PROVIDERS[0]}")
    result = self_test(CUDA_PROVIDERS[0])
    assert result.passed, result.failures


ON_DEVICE_ALONE: Sequence[Check] = (
    more_elements_than_32_bits_count,
    a_captured_graph_reads_new_contents,
    every_op_runs_as_onnx_runtime_calls_it,
    onnx_runtime_s_call_is_captured,
    onnx_runtime_runs_every_op_on_cuda,
)
