"""What a model takes and gives in the protocol's terms, and whether its requests may be merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.errors import ModelError

__all__ = ["Array", "Signature", "TensorSpec", "signature_of", "why_not_batched"]

Array = npt.NDArray[Any]
Dim = int | str | None

# ONNX Runtime's name of a type, the protocol's, and the array's; strings are objects in ORT.
_TYPES: dict[str, tuple[str, type[np.generic]]] = {
    "tensor(bool)": ("BOOL", np.bool_),
    "tensor(int8)": ("INT8", np.int8),
    "tensor(int16)": ("INT16", np.int16),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(uint8)": ("UINT8", np.uint8),
    "tensor(uint16)": ("UINT16", np.uint16),
    "tensor(uint32)": ("UINT32", np.uint32),
    "tensor(uint64)": ("UINT64", np.uint64),
    "tensor(float16)": ("FP16", np.float16),
    "tensor(float)": ("FP32", np.float32),
    "tensor(double)": ("FP64", np.float64),
    "tensor(string)": ("BYTES", np.object_),
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output; a dim is a size, a symbol, or None where nothing is known."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    dims: tuple[Dim, ...]

    @property
    def shape(self) -> list[int]:
        """The shape of the protocol's metadata: -1 for every dim that is open."""
        return [dim if isinstance(dim, int) else -1 for dim in self.dims]


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model, in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def signature_of(session: Any, name: str) -> Signature:
    """Return the signature of an onnxruntime.InferenceSession of the model `name`.

    Raises ModelError for a type that the protocol cannot carry.
    """
    return Signature(
        _specs(session.get_inputs(), "input", name), _specs(session.get_outputs(), "output", name)
    )


def _specs(arguments: Iterable[Any], kind: str, model: str) -> tuple[TensorSpec, ...]:
    specs = []
    for argument in arguments:
        if argument.type not in _TYPES:
            raise ModelError(
                f"cannot serve '{model}': {kind} '{argument.name}' is {argument.type}, which the "
                "protocol cannot carry; cast it in the model"
            )
        datatype, dtype = _TYPES[argument.type]
        dims = tuple(dim if isinstance(dim, (int, str)) else None for dim in argument.shape)
        specs.append(TensorSpec(argument.name, datatype, np.dtype(dtype), dims))
    return tuple(specs)


def why_not_batched(signature: Signature) -> str | None:
    """Return why requests of this model must not be stacked along axis 0, None where they may.

    They may where one symbol, and nothing else, is the first dim of every input and output, and
    every other dim of an output is a size or a symbol of the inputs. That is necessary and not
    sufficient: a model may mix its rows, which :meth:`onnxfold.serving.engine.Engine.open` tries.
    """
    if not signature.inputs:
        return "it has no inputs"
    first = signature.inputs[0]
    batch = first.dims[0] if first.dims else None
    if not isinstance(batch, str):
        return f"the first dim of '{first.name}' is not an open, named one"
    for spec in (*signature.inputs, *signature.outputs):
        if not spec.dims or spec.dims[0] != batch:
            return f"the first dim of '{spec.name}' is not '{batch}'"
        if batch in spec.dims[1:]:
            return f"'{batch}' is also another dim of '{spec.name}'"
    known = _symbols(signature.inputs)
    for spec in signature.outputs:
        for dim in spec.dims[1:]:
            if not isinstance(dim, int) and dim not in known:
                return f"a dim of '{spec.name}' does not follow from the shapes of the inputs"
    return None


def _symbols(specs: Sequence[TensorSpec]) -> frozenset[str]:
    return frozenset(dim for spec in specs for dim in spec.dims if isinstance(dim, str))
