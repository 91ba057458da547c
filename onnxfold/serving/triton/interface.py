"""What a model takes and gives, as ONNX Runtime sees it.

Triton's backend opens a session and refuses a configuration whose dimensions are not those of the
session, outputs exactly: so they are read from a session too, not from the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import ModelError, OnnxfoldError
from onnxfold.model_io.messages import first_cause
from onnxfold.runtime.library import register, runtime_errors

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["Interface", "Tensor", "interface_of", "open_session"]

# ONNX Runtime's name of a type -> Triton's; the types that its backend for ONNX Runtime knows.
_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(bfloat16)": "TYPE_BF16",
    "tensor(string)": "TYPE_STRING",
}

Dim = int | str | None  # a size, the name of a free one, a free one without a name


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output; an optional input has a default in the model."""

    name: str
    data_type: str
    dims: tuple[Dim, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs and outputs of a model, in its order."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def why_not_batched(self) -> str | None:
        """Say why requests cannot be joined along the first dimension; None where they can.

        Every input and output needs a free first dimension, and it must be the same one: named
        alike, where the inputs name it, no dimension of another place, and in no output one that an
        input has elsewhere. That is necessary;
        :func:`onnxfold.check.batch_independence.why_rows_mix` tries the rest.
        """
        required = [("input", tensor) for tensor in self.inputs if not tensor.optional]
        if not required:
            return "it has no input"
        for role, tensor in (*required, *(("output", tensor) for tensor in self.outputs)):
            if not tensor.dims:
                return f"{role} '{tensor.name}' is a scalar"
            if isinstance(tensor.dims[0], int):
                return f"the first dimension of {role} '{tensor.name}' is {tensor.dims[0]}, fixed"
        named = {tensor.dims[0]: tensor.name for _, tensor in required if tensor.dims[0]}
        if len(named) > 1:
            which = " and ".join(f"'{dim}' of '{name}'" for dim, name in named.items())
            return f"its inputs have different first dimensions, {which}"
        elsewhere = {dim for _, tensor in required for dim in tensor.dims[1:] if dim} - set(named)
        for tensor in self.outputs:
            if tensor.dims[0] in elsewhere:
                return f"the first dimension of output '{tensor.name}' is '{tensor.dims[0]}'"
        for role, tensor in (*required, *(("output", tensor) for tensor in self.outputs)):
            for dim in named.keys() & set(tensor.dims[1:]):
                return f"'{dim}' is another dimension of {role} '{tensor.name}' too"
        return None

    def unnamed_rows(self) -> str | None:
        """Name an output whose first dimension is not, by its name, that of the inputs; or None."""
        names = {tensor.dims[0] for tensor in self.inputs if not tensor.optional}
        return next(
            (t.name for t in self.outputs if t.dims[0] is None or {t.dims[0]} != names), None
        )


def open_session(path: Path, *, with_kernels: bool) -> ort.InferenceSession:
    """Open a session on a model file, in the way of Triton's backend, on the CPU.

    Raises ModelError for a model that cannot be opened, OnnxfoldError without ONNX Runtime.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise OnnxfoldError(
            "a Triton repository needs ONNX Runtime, to read the shapes that it infers: "
            "pip install 'onnxfold[ort]'"
        ) from error
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if with_kernels:
        register(options, "cpu")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except runtime_errors() as error:
        raise ModelError(
            f"ONNX Runtime does not open the optimized model: {first_cause(error)}"
        ) from error


def interface_of(session: ort.InferenceSession, path: Path) -> Interface:
    """Read the interface of a model from a session of its file.

    Raises ModelError for what Triton cannot serve.
    """
    ranked = _with_rank(path)
    return Interface(
        (
            *_tensors("input", session.get_inputs(), ranked, optional=False),
            *_tensors("input", session.get_overridable_initializers(), ranked, optional=True),
        ),
        _tensors("output", session.get_outputs(), ranked, optional=False),
    )


def _with_rank(path: Path) -> set[str]:
    """Names of inputs and outputs with a shape; a session gives [] for a scalar and for none."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return {
        value.name
        for value in (*graph.input, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def _tensors(
    role: str, arguments: Sequence[Any], ranked: set[str], *, optional: bool
) -> tuple[Tensor, ...]:
    tensors = []
    for argument in arguments:
        if argument.type not in _TYPES:
            raise ModelError(
                f"{role} '{argument.name}' is a {argument.type}, which Triton cannot serve"
            )
        if not argument.shape and argument.name not in ranked:
            raise ModelError(
                f"{role} '{argument.name}' has no shape, and Triton needs to know how many "
                "dimensions it has: declare them in the model"
            )
        if 0 in argument.shape:
            raise ModelError(
                f"{role} '{argument.name}' has the shape {list(argument.shape)}, without any "
                "element, which Triton cannot serve"
            )
        tensors.append(
            Tensor(argument.name, _TYPES[argument.type], tuple(argument.shape), optional)
        )
    return tuple(tensors)
