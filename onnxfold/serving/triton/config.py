"""config.pbtxt: the ModelConfig of Triton Inference Server as protobuf's text format.

The fields are those of model_config.proto (triton-inference-server/common); the rules for shapes
are those of ValidateIOShape (core, model_config_utils.cc) and of the backend's own check
(onnxruntime_backend, CompareDimsSupported).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfold.serving.triton.device import Device
from onnxfold.serving.triton.interface import Interface, Tensor

__all__ = ["ModelConfig"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What Triton is told about a model.

    ``max_batch`` 0 means that Triton joins no requests; ``library`` is the path of the kernels in
    the server, None for a model without; ``threads`` None leaves ONNX Runtime its default.
    """

    name: str
    interface: Interface
    max_batch: int
    device: Device
    library: str | None
    threads: int | None

    def text(self) -> str:
        """Return the content of config.pbtxt."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"name: {_quoted(self.name)}"
        yield 'platform: "onnxruntime_onnx"'
        yield 'backend: "onnxruntime"'
        yield f"max_batch_size: {self.max_batch}"
        for tensor in self.interface.inputs:
            # The backend takes no optional input together with batches; its default stays.
            if not (tensor.optional and self.max_batch):
                yield from self._tensor("input", tensor)
        for tensor in self.interface.outputs:
            yield from self._tensor("output", tensor)
        yield f"instance_group {{ kind: KIND_{self.device.name} count: 1 }}"
        if self.max_batch:
            yield "dynamic_batching { }"
        if self.threads is not None:
            value = f'value {{ string_value: "{self.threads}" }}'
            yield f'parameters {{ key: "intra_op_thread_count" {value} }}'
        if self.library is not None:
            yield f"model_operations {{ op_library_filename: {_quoted(self.library)} }}"

    def _tensor(self, field: str, tensor: Tensor) -> Iterator[str]:
        dims = [dim if isinstance(dim, int) else -1 for dim in tensor.dims]
        if self.max_batch:
            dims = dims[1:]
        yield f"{field} {{"
        yield f"  name: {_quoted(tensor.name)}"
        yield f"  data_type: {tensor.data_type}"
        yield f"  dims: [ {', '.join(map(str, dims or [1]))} ]"
        # Triton has no empty dims; the backend takes [1] for a scalar, but not for a batch of them.
        if self.max_batch and not dims:
            yield "  reshape { shape: [ ] }"
        if tensor.optional:
            yield "  optional: true"
        yield "}"


def _quoted(text: str) -> str:
    """A string literal of protobuf's text format: UTF-8, what could end or break it escaped."""
    escaped = "".join(
        f"\\{byte:03o}" if byte < 0x20 or byte >= 0x7F or chr(byte) in '"\\' else chr(byte)
        for byte in text.encode()
    )
    return f'"{escaped}"'
