"""The ops of a library, called as ONNX Runtime calls them, by the pretended one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import onnx_ir as ir

from onnxfold.operators.functions import SIGNATURES
from tests.calls import LEVELS, output_forms, random_inputs
from tests.custom_ops.bounds import CODES, TYPES, assert_outputs_right
from tests.custom_ops.cuda_kernels import POISON, Memory
from tests.custom_ops.fake_runtime import CUDA, Runtime, Tensor
from tests.oracle import Array

__all__ = ["Call", "assert_every_op_right"]


class Call:
    """One op with its tensors in a memory: `run` computes, `outputs` reads what was computed."""

    def __init__(
        self, runtime: Runtime, memory: Memory, name: str, inputs: Mapping[str, Array]
    ) -> None:
        signature, x = SIGNATURES[name], inputs["X"]
        self.inputs = inputs
        self.runtime, self.memory, self.forms = runtime, memory, output_forms(name, inputs)
        code = ir.DataType.UNDEFINED
        if signature.quantized:
            code = ir.DataType.from_numpy(inputs["y_zero_point"].dtype)
            runtime.levels = LEVELS[code]
        self.key = (name, CUDA, ir.DataType.from_numpy(x.dtype).value, code.value)
        given = [(inputs[key].tobytes(), inputs[key].shape) for key in signature.inputs]
        made = [
            (bytes([POISON]) * (int(np.prod(shape)) * dtype.itemsize), shape)
            for shape, dtype in self.forms
        ]
        self.buffers = [memory.allocate(content, 0) for content, _ in (*given, *made)]
        tensors = [
            Tensor(memory.address(buffer), shape)
            for buffer, (_, shape) in zip(self.buffers, (*given, *made), strict=True)
        ]
        self.tensors = tensors[: len(given)], tensors[len(given) :]

    def run(self, *, device: int, stream: int) -> str | None:
        return self.runtime.run(self.key, *self.tensors, device=device, stream=stream)

    def outputs(self) -> list[Array]:
        made = self.buffers[len(self.tensors[0]) :]
        return [
            np.frombuffer(self.memory.content(buffer), dtype).reshape(shape)
            for buffer, (shape, dtype) in zip(made, self.forms, strict=True)
        ]


def assert_every_op_right(runtime: Runtime, memory: Memory, *, device: int, stream: int) -> None:
    """All ops in all types, on a device whose number the tensors alone tell."""
    for name, signature in SIGNATURES.items():
        for dtype, code in product(TYPES, CODES if signature.quantized else CODES[:1]):
            inputs = random_inputs(name, (5, 72), dtype, code=code)
            call = Call(runtime, memory, name, inputs)
            assert call.run(device=device, stream=stream) is None, name
            assert_outputs_right(name, inputs, call.outputs())
