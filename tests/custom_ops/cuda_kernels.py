"""Calling the CUDA kernels without ONNX Runtime: on a device, or their emulation on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from onnxfold.operators.functions import SIGNATURES, Activation, Output, Signature
from tests.calls import LEVELS, output_forms
from tests.oracle import Array

__all__ = ["POISON", "Arguments", "CudaMemory", "HostMemory", "Kernels", "Memory", "Plan"]

_POINTERS = ("x", "residual", "linear_bias", "scale", "bias", "y", "sum")
_MORE_POINTERS = ("row_scale", "row_epsilon", "y_scale", "y_zero_point", "y_scales", "row_scales")
_ACTIVATIONS = {activation: number for number, activation in enumerate(Activation)}
_CODES = {ir.DataType.INT8: 1, ir.DataType.UINT8: 2, ir.DataType.FLOAT8E4M3FN: 3}
_NUMBERS = {ir.DataType.FLOAT: 0, ir.DataType.FLOAT16: 1, ir.DataType.BFLOAT16: 2}
_NAMES = {"X": "x"}
POISON = 0xA5  # outputs hold it before a call: a NaN or a number that no test expects


class Arguments(ctypes.Structure):
    """onnxfold::Arguments."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("rows", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("activation", ctypes.c_int),
        ("code", ctypes.c_int),
        ("levels", ctypes.c_float),
        ("least", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in _MORE_POINTERS),
    )


class Plan(ctypes.Structure):
    """onnxfold::cuda::Plan."""

    _fields_ = (
        ("threads_per_row", ctypes.c_int),
        ("vectors", ctypes.c_int),
        ("shifted", ctypes.c_bool),
        ("wide", ctypes.c_bool),
        ("threads", ctypes.c_int),
        ("blocks", ctypes.c_int64),
        ("parts", ctypes.c_int),
    )


class Memory(Protocol):
    """Buffers of an exact size that start `offset` bytes after a multiple of 256."""

    def allocate(self, content: bytes, offset: int) -> Any: ...
    def address(self, buffer: Any) -> int: ...
    def content(self, buffer: Any) -> bytes: ...


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """`size` bytes from `start`, between guards."""

    memory: Array
    start: int
    size: int


class HostMemory:
    """Buffers on the host, with guards on both sides that must not change."""

    GUARD = 512

    def allocate(self, content: bytes, offset: int) -> HostBuffer:
        memory = np.full(len(content) + 2 * self.GUARD, 0x5A, np.uint8)
        start = self.GUARD - int(memory.ctypes.data) % 256 + offset
        memory[start : start + len(content)] = np.frombuffer(content, np.uint8)
        return HostBuffer(memory, start, len(content))

    def address(self, buffer: HostBuffer) -> int:
        return int(buffer.memory.ctypes.data) + buffer.start

    def content(self, buffer: HostBuffer) -> bytes:
        end = buffer.start + buffer.size
        guards = np.concatenate([buffer.memory[: buffer.start], buffer.memory[end:]])
        assert (guards == 0x5A).all(), "a kernel wrote beside its tensor"
        return buffer.memory[buffer.start : end].tobytes()


class CudaBuffer:
    """Memory of its exact size from cudaMalloc, so that compute-sanitizer sees a step outside."""

    def __init__(self, runtime: Any, size: int, offset: int) -> None:
        self.runtime, self.size, self.base = runtime, size, 0
        self.base = runtime.malloc(size + offset) if size else 0
        self.address = self.base + offset if size else 0

    def __del__(self) -> None:
        if self.base:
            self.runtime.free(self.base)


class CudaMemory:
    """Buffers on a CUDA device, through CuPy's plain calls of the runtime."""

    def __init__(self, device: int = 0) -> None:
        from cupy.cuda import runtime

        self.runtime, self.device = runtime, device

    def allocate(self, content: bytes, offset: int) -> CudaBuffer:
        with self._current():
            buffer = CudaBuffer(self.runtime, len(content), offset)
        if content:
            source = np.frombuffer(content, np.uint8)
            with self._current():
                self.runtime.memcpy(buffer.address, source.ctypes.data, len(content), 1)
                self.runtime.deviceSynchronize()
        return buffer

    def address(self, buffer: CudaBuffer) -> int:
        return int(buffer.address)

    def content(self, buffer: CudaBuffer) -> bytes:
        target = np.empty(buffer.size, np.uint8)
        if buffer.size:
            with self._current():
                self.runtime.deviceSynchronize()  # a copy does not wait for non-blocking streams
                self.runtime.memcpy(target.ctypes.data, buffer.address, buffer.size, 2)
        return target.tobytes()

    @contextmanager
    def _current(self) -> Iterator[None]:
        """With the memory's device current, and afterwards the one that was."""
        before = self.runtime.getDevice()
        self.runtime.setDevice(self.device)
        yield
        self.runtime.setDevice(before)


class Kernels:
    """One library with `onnxfold_run`, and the memory that its pointers are in."""

    def __init__(self, library: Path, memory: Memory) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library))
        self._library.onnxfold_run.restype = ctypes.c_char_p
        self._library.onnxfold_run.argtypes = (
            *(ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(Arguments)),
            *(ctypes.c_int, ctypes.c_void_p),
        )
        self.memory = memory

    def call(
        self,
        name: str,
        dtype: ir.DataType,
        arguments: Arguments,
        *,
        multiprocessors: int = 132,
        stream: int = 0,
    ) -> None:
        """One call, on pointers of the caller's own."""
        error = self._library.onnxfold_run(
            name.encode(), _NUMBERS[dtype], ctypes.byref(arguments), multiprocessors, stream
        )
        assert error is None, f"{name}: {error.decode()}"

    def run(
        self,
        name: str,
        inputs: Mapping[str, Array],
        *,
        epsilon: float = 1e-5,
        offset: int = 0,
        constants_offset: int = 0,
        multiprocessors: int = 132,
        in_place: str = "",
    ) -> list[Array]:
        """The outputs of one call over the last axis of X: [rows, n].

        The offsets put tensors, and scale, bias and linear_bias, whole elements off multiples of
        256 bytes: tensors of rows are float32 for any type of X. in_place: where outputs go, "x": Y
        to X (Sum to residual); "r": the other way round.
        """
        signature = SIGNATURES[name]
        x = inputs["X"]
        buffers = {
            _NAMES.get(key, key): self.memory.allocate(
                array.tobytes(),
                _whole(offset if key in ("X", "residual") else constants_offset, array.itemsize),
            )
            for key, array in inputs.items()
        }
        forms = output_forms(name, inputs)
        places = {"x": ("x", "residual"), "r": ("residual", "x")}
        made = [_argument(signature, key) for key in signature.outputs]
        for index, (output, (shape, kind)) in enumerate(zip(made, forms, strict=True)):
            if in_place:
                buffers[output] = buffers[places[in_place][index]]
                continue
            size = int(np.prod(shape)) * kind.itemsize
            buffers[output] = self.memory.allocate(
                bytes([POISON]) * size, _whole(offset, kind.itemsize)
            )
        pointers = {key: self.memory.address(buffer) for key, buffer in buffers.items()}
        arguments = Arguments(rows=x.shape[0], size=x.shape[1], epsilon=epsilon, **pointers)
        arguments.activation = _ACTIVATIONS[signature.activation]
        if signature.quantized:
            code = ir.DataType.from_numpy(inputs["y_zero_point"].dtype)
            arguments.code, arguments.levels = _CODES[code], LEVELS[code]
        dtype = ir.DataType.from_numpy(x.dtype)
        self.call(name, dtype, arguments, multiprocessors=multiprocessors)
        return [
            np.frombuffer(self.memory.content(buffers[output]), kind).reshape(shape)
            for output, (shape, kind) in zip(made, forms, strict=True)
        ]


def _whole(offset: int, itemsize: int) -> int:
    return -(-offset // itemsize) * itemsize


def _argument(signature: Signature, output: str) -> str:
    """The pointer of onnxfold::Arguments that an output goes to."""
    if output == "Y" and signature.output is Output.SCALE:
        return "row_scales"
    return {"Y": "y", "Y_scale": "y_scales", "Sum": "sum"}[output]
