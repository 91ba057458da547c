"""Sessions of ONNX Runtime whose inputs and outputs stay on the device that they run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

__all__ = ["Bound", "memory_of", "outputs_on", "values_on"]


class Bound:
    """A session that reads its inputs, and writes its outputs, where they are."""

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Mapping[str, ort.OrtValue],
        outputs: Mapping[str, ort.OrtValue],
    ) -> None:
        self.session = session
        self.binding = session.io_binding()
        for name, value in inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self.binding.bind_ortvalue_output(name, value)

    def run(self) -> None:
        """Run once, to the end of what the device does."""
        self.session.run_with_iobinding(self.binding)


def memory_of(provider: str) -> str:
    """ONNX Runtime's name of the memory that a provider's tensors are in."""
    return "cuda" if provider.startswith("CUDA") else "cpu"


def values_on(memory: str, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Copies of arrays in the memory of a device."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array, memory) for name, array in feeds.items()}


def outputs_on(
    memory: str, session: ort.InferenceSession, feeds: Mapping[str, npt.NDArray[Any]]
) -> dict[str, ort.OrtValue]:
    """Memory of a device for the outputs of a session, which sessions of one model may share."""
    names = [output.name for output in session.get_outputs()]
    arrays = session.run(names, dict(feeds))
    return {
        name: ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, memory)
        for name, array in zip(names, arrays, strict=True)
    }
