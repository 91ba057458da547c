"""The ModelConfig of Triton Inference Server: as JSON, and as protobuf's text in config.pbtxt.

The fields are defined in model_config.proto (triton-inference-server/common); the rules for shapes
in ValidateIOShape (core, model_config_utils.cc) and in the backend's own check
(onnxruntime_backend, CompareDimsSupported).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnxfold.serving.served_signature import ServedSignature, TensorSpec
from onnxfold.serving.triton.deployment import TritonDevice

# Names of enum values, which protobuf's text has without quotes.
_ENUMS = frozenset({"data_type", "kind"})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of a model for Triton or its clients.

    ``max_batch`` 0 means that requests are never batched, and ``delay_us`` is how long one waits
    for others; ``library`` is the path of the kernels in Triton, or None; ``threads`` None uses
    ONNX Runtime's default; ``count`` is the number of concurrent runs.
    """

    name: str
    signature: ServedSignature
    max_batch: int
    device: TritonDevice
    library: str | None = None
    threads: int | None = None
    count: int = 1
    delay_us: int = 0

    def text(self) -> str:
        """Return the content of config.pbtxt."""
        return "\n".join(_lines(self.document())) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the fields for JSON; maps are lists of keys and values, as in the text."""
        # The backend does not combine an optional input with batches; its default stays.
        inputs = self.signature.without_optional() if self.max_batch else self.signature
        document: dict[str, Any] = {
            "name": self.name,
            "platform": "onnxruntime_onnx",
            "backend": "onnxruntime",
            "max_batch_size": self.max_batch,
            "input": [self._tensor(spec) for spec in inputs.inputs],
            "output": [self._tensor(spec) for spec in self.signature.outputs],
            "instance_group": [{"kind": f"KIND_{self.device.name}", "count": self.count}],
        }
        if self.max_batch:
            delay = {"max_queue_delay_microseconds": self.delay_us} if self.delay_us else {}
            document["dynamic_batching"] = delay
        if self.threads is not None:
            value = {"string_value": str(self.threads)}
            document["parameters"] = [{"key": "intra_op_thread_count", "value": value}]
        if self.library is not None:
            document["model_operations"] = {"op_library_filename": [self.library]}
        return document

    def _tensor(self, spec: TensorSpec) -> dict[str, Any]:
        dims = spec.shape[1:] if self.max_batch else spec.shape
        tensor: dict[str, Any] = {
            "name": spec.name,
            "data_type": spec.datatype.triton,
            "dims": dims or [1],
        }
        # Triton does not support empty dims; the backend accepts [1] for a scalar, but not for a
        # batch of scalars.
        if self.max_batch and not dims:
            tensor["reshape"] = {"shape": []}
        if spec.optional:
            tensor["optional"] = True
        return tensor


def _lines(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message in protobuf's text format, one field per line."""
    for field, value in message.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield f"{field} {{ {' '.join(_lines(one))} }}"
            else:
                yield f"{field}: {_scalar(field, one)}"


def _scalar(field: str, value: str | int) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or field in _ENUMS:
        return str(value)
    return _quoted(value)


def _quoted(text: str) -> str:
    """Return a string literal of protobuf's text format: UTF-8, with special characters escaped."""
    escaped = "".join(
        f"\\{byte:03o}" if byte < 0x20 or byte >= 0x7F or chr(byte) in '"\\' else chr(byte)
        for byte in text.encode()
    )
    return f'"{escaped}"'
