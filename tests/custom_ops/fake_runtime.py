"""Registers a kernel library with a pretended ONNX Runtime, and runs one of its ops for CUDA.

    python fake_runtime.py LIBRARY

Prints each registered op (name, provider, element type), then what the pretended runtime was asked
for when LayerNorm ran on CUDA. Meant for a process that sees no device: the launch has to fail, and
the failure has to come back as a status.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

PROVIDER = b"CUDAExecutionProvider"
FLOAT = 1
POINTER, SIZE, INT64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
STREAM, TENSOR, OUTPUT = 0x51, 0x1000, 0x2000
SHAPE = (4, 64)


class Op(ctypes.Structure):
    """The head of OrtCustomOp, and its two V2 callbacks."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("CreateKernel", POINTER),
        ("GetName", ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)),
        ("GetExecutionProviderType", ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)),
        ("GetInputType", ctypes.CFUNCTYPE(ctypes.c_int, POINTER, SIZE)),
        ("unused", POINTER * 12),
        ("CreateKernelV2", ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, POINTER, POINTER)),
        ("KernelComputeV2", ctypes.CFUNCTYPE(POINTER, POINTER, POINTER)),
    )


class Runtime:
    """The slots of OrtApi that a library uses; `asked` holds what it was asked for."""

    def __init__(self) -> None:
        self.ops: list[int] = []
        self.asked: list[str] = []
        self.kept: list[Any] = []
        self.table = (POINTER * 300)()

    def slot(self, number: int, *types: Any) -> Callable[[Callable[..., Any]], None]:
        def put(function: Callable[..., Any]) -> None:
            wrapped = ctypes.CFUNCTYPE(POINTER, *types)(function)
            self.kept.append(wrapped)
            self.table[number] = ctypes.cast(wrapped, POINTER).value

        return put


def put(address: int, kind: Any, value: Any) -> None:
    ctypes.cast(address, ctypes.POINTER(kind))[0] = value


def pretended() -> Runtime:
    runtime = Runtime()
    give_domains(runtime)
    give_tensors(runtime)
    give_calls(runtime)
    return runtime


def give_domains(runtime: Runtime) -> None:
    slot, asked = runtime.slot, runtime.asked

    @slot(0, ctypes.c_int, ctypes.c_char_p)
    def create_status(code: int, message: bytes) -> int:
        asked.append(f"status {code}: {message.decode()}")
        return 1

    @slot(26, ctypes.c_char_p, POINTER)
    def create_domain(name: bytes, out: int) -> None:
        asked.append(f"domain {name.decode()}")
        put(out, POINTER, 7)

    @slot(27, POINTER, POINTER)
    def add_op(domain: int, op: int) -> None:
        assert domain == 7
        runtime.ops.append(op)

    @slot(28, POINTER, POINTER)
    def add_domain(options: int, domain: int) -> None:
        del options
        asked.append(f"options get domain {domain}")


def give_tensors(runtime: Runtime) -> None:
    slot = runtime.slot

    @slot(51, POINTER, POINTER)
    def tensor_data(value: int, out: int) -> None:
        put(out, POINTER, value)

    @slot(61, POINTER, POINTER)
    def rank(info: int, out: int) -> None:
        del info
        put(out, SIZE, len(SHAPE))

    @slot(62, POINTER, POINTER, SIZE)
    def dims(info: int, out: int, count: int) -> None:
        del info
        (INT64 * count).from_address(out)[:] = SHAPE

    @slot(65, POINTER, POINTER)
    def type_and_shape(value: int, out: int) -> None:
        put(out, POINTER, value)

    @slot(99, POINTER)
    def release_info(info: int) -> None:
        del info


def give_calls(runtime: Runtime) -> None:
    slot, asked = runtime.slot, runtime.asked

    @slot(85, POINTER, ctypes.c_char_p, POINTER)
    def float_attribute(info: int, name: bytes, out: int) -> None:
        del info
        assert name == b"epsilon"
        put(out, ctypes.c_float, 1e-5)

    @slot(86, POINTER, ctypes.c_char_p, POINTER)
    def int_attribute(info: int, name: bytes, out: int) -> None:
        del info
        assert name == b"axis"
        put(out, INT64, -1)

    @slot(90, POINTER, SIZE, POINTER)
    def get_input(context: int, index: int, out: int) -> None:
        del context
        asked.append(f"input {index}")
        put(out, POINTER, TENSOR)

    @slot(91, POINTER, SIZE, POINTER, SIZE, POINTER)
    def get_output(context: int, index: int, dims: int, count: int, out: int) -> None:
        del context
        shape = tuple((INT64 * count).from_address(dims))
        asked.append(f"output {index} {shape}")
        put(out, POINTER, OUTPUT)

    @slot(249, POINTER, SIZE, POINTER, POINTER)
    def constant_input(info: int, index: int, is_constant: int, out: int) -> None:
        del info, index, out
        put(is_constant, ctypes.c_int, 0)

    @slot(193, POINTER, POINTER)
    def gpu_stream(context: int, out: int) -> None:
        del context
        asked.append("stream")
        put(out, POINTER, STREAM)


def register(library: str, runtime: Runtime) -> None:
    version = ctypes.create_string_buffer(b"1.31.1")
    get_api = ctypes.CFUNCTYPE(POINTER, ctypes.c_uint32)(
        lambda _version: ctypes.addressof(runtime.table)
    )
    get_version = ctypes.CFUNCTYPE(POINTER)(lambda: ctypes.addressof(version))
    base = (POINTER * 2)(*(ctypes.cast(f, POINTER).value for f in (get_api, get_version)))
    runtime.kept += [version, get_api, get_version, base]
    entry = ctypes.CDLL(library).RegisterCustomOps
    entry.restype = POINTER
    assert entry(None, base) is None


def main(library: str) -> None:
    runtime = pretended()
    register(library, runtime)
    lines = []
    for address in runtime.ops:
        op = Op.from_address(address)
        name, provider = op.GetName(address), op.GetExecutionProviderType(address)
        element = op.GetInputType(address, 0)
        lines.append(f"op {name.decode()} {provider.decode()} {element}")
        if (name, provider, element) == (b"LayerNorm", PROVIDER, FLOAT):
            kernel = POINTER()
            table = ctypes.addressof(runtime.table)
            assert op.CreateKernelV2(address, table, None, ctypes.addressof(kernel)) is None
            assert op.KernelComputeV2(kernel, None) == 1
    sys.stdout.write("\n".join([*lines, *(f"asked {what}" for what in runtime.asked), ""]))


if __name__ == "__main__":
    main(sys.argv[1])
