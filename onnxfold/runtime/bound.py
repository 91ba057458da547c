"""Sessions of ONNX Runtime whose inputs and outputs stay on their device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime as ort


class Bound:
    """A session with inputs and outputs in fixed memory."""

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
        """Run once, and wait for the device."""
        self.session.run_with_iobinding(self.binding)


def memory_of(provider: str) -> str:
    """Return ONNX Runtime's name of the memory of a provider's tensors."""
    return "cuda" if provider.startswith("CUDA") else "cpu"


def values_on(memory: str, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Return copies of arrays in the memory of a device."""
    import onnxruntime as ort

    return {name: ort.OrtValue.ortvalue_from_numpy(array, memory) for name, array in feeds.items()}


def outputs_on(
    memory: str, session: ort.InferenceSession, feeds: Mapping[str, npt.NDArray[Any]]
) -> dict[str, ort.OrtValue]:
    """Return device memory for a session's outputs, which sessions of one model may share."""
    names = [output.name for output in session.get_outputs()]
    arrays = session.run(names, dict(feeds))
    return memory_for(memory, session, dict(zip(names, arrays, strict=True)))


def memory_for(
    memory: str, session: ort.InferenceSession, arrays: Mapping[str, npt.NDArray[Any]]
) -> dict[str, ort.OrtValue]:
    """Return device memory for the outputs of a session, with the shapes of arrays."""
    import onnxruntime as ort

    return {
        output.name: ort.OrtValue.ortvalue_from_shape_and_type(
            arrays[output.name].shape, _dtype(output.type), memory
        )
        for output in session.get_outputs()
    }


def _dtype(kind: str) -> np.dtype[Any]:
    """Return the array type of an ONNX Runtime type such as tensor(float16)."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))
