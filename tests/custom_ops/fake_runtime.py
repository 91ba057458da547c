"""A pretended ONNX Runtime: registers a kernel library and runs its ops on tensors of the caller's.

    python fake_runtime.py LIBRARY

Prints each registered op (name, provider, element type), then what the pretended runtime was asked
for when LayerNorm ran on CUDA. Meant for a process that sees no device: the launch has to fail, and
the failure has to come back as a status.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CUDA", "Runtime", "Tensor"]

CUDA = "CUDAExecutionProvider"
SHAPES_SINCE = 24  # GetTensorElementTypeAndShapeDataReference
FLOAT = 1
CODES = (2, 3, 17)  # UINT8, INT8, FLOAT8E4M3FN
POINTER, SIZE, INT64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class Op(ctypes.Structure):
    """The head of OrtCustomOp, and its two V2 callbacks."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("CreateKernel", POINTER),
        ("GetName", ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)),
        ("GetExecutionProviderType", ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)),
        ("GetInputType", ctypes.CFUNCTYPE(ctypes.c_int, POINTER, SIZE)),
        ("GetInputTypeCount", ctypes.CFUNCTYPE(SIZE, POINTER)),
        ("unused", POINTER * 3),
        ("KernelDestroy", ctypes.CFUNCTYPE(None, POINTER)),
        ("unused_too", POINTER * 7),
        ("CreateKernelV2", ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, POINTER, POINTER)),
        ("KernelComputeV2", ctypes.CFUNCTYPE(POINTER, POINTER, POINTER)),
    )


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor is, and its shape."""

    address: int
    shape: tuple[int, ...]


class Runtime:
    """The slots of OrtApi that a library uses; `asked` holds what it was asked for.

    A value, and its description, is the number of its tensor: inputs from 1 on, then outputs.
    It says that it is 1.`minor`, and has tables up to `newest_api`, by default its own.
    """

    def __init__(self, library: str, minor: int = 31, newest_api: int | None = None) -> None:
        self.ops: dict[tuple[str, str, int, int], int] = {}
        self.asked: list[str] = []
        self.tensors: Sequence[Tensor] = ()
        self.inputs = self.stream = self.device = 0
        self.epsilon, self.levels = 1e-5, 127.0
        self._kept: list[Any] = []
        self._table = (POINTER * 415)()
        for give in (give_domains, give_tensors, give_attributes, give_calls):
            give(self)
        if minor >= SHAPES_SINCE:
            give_shapes(self)
        self._register(library, minor, minor if newest_api is None else newest_api)

    def slot(self, number: int, *types: Any) -> Callable[[Callable[..., Any]], None]:
        def put(function: Callable[..., Any]) -> None:
            wrapped = ctypes.CFUNCTYPE(POINTER, *types)(function)
            self._kept.append(wrapped)
            self._table[number] = ctypes.cast(wrapped, POINTER).value

        return put

    def run(
        self,
        key: tuple[str, str, int, int],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        device: int,
        stream: int,
    ) -> str | None:
        """One call of an op on a device; None, or what its status says."""
        self.tensors, self.inputs = (*inputs, *outputs), len(inputs)
        self.device, self.stream = device, stream
        op, kernel = Op.from_address(self.ops[key]), POINTER()
        table = ctypes.addressof(self._table)
        assert op.CreateKernelV2(self.ops[key], table, None, ctypes.addressof(kernel)) is None
        status = op.KernelComputeV2(kernel, None)
        op.KernelDestroy(kernel)
        return None if status is None else self.asked[-1]

    def _register(self, library: str, minor: int, newest_api: int) -> None:
        version = ctypes.create_string_buffer(f"1.{minor}.1".encode())
        get_api = ctypes.CFUNCTYPE(POINTER, ctypes.c_uint32)(
            lambda version: ctypes.addressof(self._table) if version <= newest_api else None
        )
        get_version = ctypes.CFUNCTYPE(POINTER)(lambda: ctypes.addressof(version))
        base = (POINTER * 2)(*(ctypes.cast(f, POINTER).value for f in (get_api, get_version)))
        self._kept += [version, get_api, get_version, base]
        entry = ctypes.CDLL(library).RegisterCustomOps
        entry.restype = POINTER
        assert entry(None, base) is None


def put(address: int, kind: Any, value: Any) -> None:
    ctypes.cast(address, ctypes.POINTER(kind))[0] = value


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
    def add_op(domain: int, address: int) -> None:
        assert domain == 7
        op = Op.from_address(address)
        name, provider = op.GetName(address), op.GetExecutionProviderType(address)
        last = op.GetInputType(address, op.GetInputTypeCount(address) - 1)
        code = last if last in CODES else 0
        key = (name.decode(), provider.decode(), op.GetInputType(address, 0), code)
        assert key not in runtime.ops
        runtime.ops[key] = address

    @slot(28, POINTER, POINTER)
    def add_domain(options: int, domain: int) -> None:
        del options
        asked.append(f"options get domain {domain}")


def give_tensors(runtime: Runtime) -> None:
    slot = runtime.slot

    @slot(51, POINTER, POINTER)
    def tensor_data(value: int, out: int) -> None:
        put(out, POINTER, runtime.tensors[value - 1].address)

    @slot(61, POINTER, POINTER)
    def rank(info: int, out: int) -> None:
        put(out, SIZE, len(runtime.tensors[info - 1].shape))

    @slot(62, POINTER, POINTER, SIZE)
    def dims(info: int, out: int, count: int) -> None:
        (INT64 * count).from_address(out)[:] = runtime.tensors[info - 1].shape

    @slot(65, POINTER, POINTER)
    def type_and_shape(value: int, out: int) -> None:
        runtime.asked.append(f"description of {value}")
        put(out, POINTER, value)

    @slot(99, POINTER)
    def release_info(info: int) -> None:
        runtime.asked.append(f"release of {info}")

    @slot(194, POINTER, POINTER)
    def memory_info(value: int, out: int) -> None:
        runtime.asked.append(f"memory of {value}")
        put(out, POINTER, 11)

    @slot(72, POINTER, POINTER)
    def memory_id(info: int, out: int) -> None:
        assert info == 11
        put(out, ctypes.c_int, runtime.device)


def give_shapes(runtime: Runtime) -> None:
    kept: dict[tuple[int, ...], ctypes.Array[INT64]] = {}

    @runtime.slot(414, POINTER, POINTER, POINTER, POINTER)
    def shape_data(value: int, kind: int, dims: int, count: int) -> None:
        shape = runtime.tensors[value - 1].shape
        runtime.asked.append(f"shape of {value}")
        lent = kept.setdefault(shape, (INT64 * len(shape))(*shape))
        put(kind, ctypes.c_int, FLOAT)
        put(dims, POINTER, ctypes.addressof(lent) if shape else None)  # as of a scalar
        put(count, SIZE, len(shape))


def give_attributes(runtime: Runtime) -> None:
    slot = runtime.slot

    @slot(85, POINTER, ctypes.c_char_p, POINTER)
    def float_attribute(info: int, name: bytes, out: int) -> None:
        del info
        values = {b"epsilon": runtime.epsilon, b"levels": runtime.levels, b"least": 0.0}
        put(out, ctypes.c_float, values[name])

    @slot(86, POINTER, ctypes.c_char_p, POINTER)
    def int_attribute(info: int, name: bytes, out: int) -> None:
        del info
        assert name == b"axis"
        put(out, INT64, -1)

    @slot(249, POINTER, SIZE, POINTER, POINTER)
    def constant_input(info: int, index: int, is_constant: int, out: int) -> None:
        del info, index, out
        put(is_constant, ctypes.c_int, 0)


def give_calls(runtime: Runtime) -> None:
    slot, asked = runtime.slot, runtime.asked

    @slot(90, POINTER, SIZE, POINTER)
    def get_input(context: int, index: int, out: int) -> None:
        del context
        asked.append(f"input {index}")
        put(out, POINTER, 1 + index)

    @slot(91, POINTER, SIZE, POINTER, SIZE, POINTER)
    def get_output(context: int, index: int, dims: int, count: int, out: int) -> None:
        del context
        shape = tuple((INT64 * count).from_address(dims))
        asked.append(f"output {index} {shape}")
        assert shape == runtime.tensors[runtime.inputs + index].shape
        put(out, POINTER, 1 + runtime.inputs + index)

    @slot(193, POINTER, POINTER)
    def gpu_stream(context: int, out: int) -> None:
        del context
        asked.append("stream")
        put(out, POINTER, runtime.stream)


def main(library: str) -> None:
    runtime = Runtime(library)
    tensors = [Tensor(0x1000, (4, 64))], [Tensor(0x2000, (4, 64))]
    assert runtime.run(("LayerNorm", CUDA, FLOAT, 0), *tensors, device=0, stream=0x51) is not None
    lines = [f"op {' '.join(map(str, key))}" for key in runtime.ops]
    sys.stdout.write("\n".join([*lines, *(f"asked {what}" for what in runtime.asked), ""]))


if __name__ == "__main__":
    main(sys.argv[1])
