"""Inputs and outputs of a model as ONNX Runtime sees them, and whether requests may be batched.

Both the server and the Triton repository use it: Triton's backend refuses a configuration whose
dimensions differ from a session's, so they are read from a session, not from the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.errors import ModelError
from onnxfold.serving.datatypes import BY_ONNX, Datatype

Array = npt.NDArray[Any]
Dim = int | str | None  # a size, the name of a free one, a free one without a name


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output; an optional input has a default in the model."""

    name: str
    datatype: Datatype
    dims: tuple[Dim, ...]
    optional: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its arrays.

        Raises ModelError if ONNX Runtime cannot accept it from Python.
        """
        if self.datatype.dtype is None:
            raise ModelError(
                f"'{self.name}' is a {self.datatype.onnx}, which ONNX Runtime does not accept "
                "from Python; cast it in the model"
            )
        return self.datatype.dtype

    @property
    def shape(self) -> list[int]:
        """The shape of the protocol's metadata: -1 for every free dimension."""
        return [dim if isinstance(dim, int) else -1 for dim in self.dims]


@dataclass(frozen=True, slots=True)
class ServedSignature:
    """The inputs and outputs of a model, in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def without_optional(self) -> "ServedSignature":
        """Return it without the inputs that have a default."""
        return replace(self, inputs=tuple(spec for spec in self.inputs if not spec.optional))

    def roles(self) -> tuple[tuple[str, TensorSpec], ...]:
        """Pair the inputs and outputs of every request, inputs first, with their roles."""
        inputs = (("input", spec) for spec in self.without_optional().inputs)
        return (*inputs, *(("output", spec) for spec in self.outputs))


def signature_of(session: Any, path: Path, name: str) -> ServedSignature:
    """Return the signature of an onnxruntime.InferenceSession of the file of the model `name`.

    Raises ModelError for a type that the protocol cannot represent and for an unknown number of
    dimensions.
    """
    reader = _Reader(path, name)
    return ServedSignature(
        (
            *reader.specs("input", session.get_inputs()),
            *reader.specs("input", session.get_overridable_initializers(), optional=True),
        ),
        reader.specs("output", session.get_outputs()),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    model: str

    def specs(
        self, role: str, arguments: Sequence[Any], *, optional: bool = False
    ) -> tuple[TensorSpec, ...]:
        return tuple(self._spec(role, argument, optional=optional) for argument in arguments)

    def _spec(self, role: str, argument: Any, *, optional: bool) -> TensorSpec:
        what = f"cannot serve '{self.model}': {role} '{argument.name}'"
        if argument.type not in BY_ONNX:
            raise ModelError(
                f"{what} is a {argument.type}, which the protocol cannot carry; cast it in the "
                "model"
            )
        if not argument.shape and not optional and argument.name not in self._with_rank():
            raise ModelError(
                f"{what} has no shape, and clients need to know how many dimensions it has: "
                "declare them in the model"
            )
        dims = tuple(dim if isinstance(dim, (int, str)) else None for dim in argument.shape)
        return TensorSpec(argument.name, BY_ONNX[argument.type], dims, optional)

    def _with_rank(self) -> set[str]:
        """Return names of values with a shape.

        A session reports [] for a scalar and for an unknown rank.
        """
        import onnx

        graph = onnx.load(self.path, load_external_data=False).graph
        return {
            value.name
            for value in (*graph.input, *graph.output)
            if value.type.tensor_type.HasField("shape")
        }


def why_not_batched(signature: ServedSignature) -> str | None:
    """Return why requests cannot be batched along the first dimension, or None.

    Every input and output needs a free first dimension, and it must be the same one: with equal
    names if the inputs name it, not used as another dimension, and in no output a dimension that an
    input has elsewhere. That is necessary; :func:`onnxfold.serving.batch_independence.why_rows_mix`
    tries the rest.
    """
    inputs = signature.without_optional().inputs
    if not inputs:
        return "it has no input"
    for role, spec in signature.roles():
        if not spec.dims:
            return f"{role} '{spec.name}' is a scalar"
        if isinstance(spec.dims[0], int):
            return f"the first dimension of {role} '{spec.name}' is {spec.dims[0]}, fixed"
    named = {spec.dims[0]: spec.name for spec in inputs if spec.dims[0]}
    if len(named) > 1:
        which = " and ".join(f"'{dim}' of '{name}'" for dim, name in named.items())
        return f"its inputs have different first dimensions, {which}"
    elsewhere = {dim for spec in inputs for dim in spec.dims[1:] if dim} - set(named)
    for spec in signature.outputs:
        if spec.dims[0] in elsewhere:
            return f"the first dimension of output '{spec.name}' is '{spec.dims[0]}'"
    for role, spec in signature.roles():
        for dim in named.keys() & set(spec.dims[1:]):
            return f"'{dim}' is another dimension of {role} '{spec.name}' too"
    return None


def why_unsure(signature: ServedSignature) -> str | None:
    """Return what names leave uncertain in a signature that :func:`why_not_batched` accepts.

    None if one name is the first dimension of every input and output, and every other dimension of
    an output is a size or a name of the inputs: then output rows correspond to input rows, and no
    request determines the shape of another's answer.
    """
    inputs = signature.without_optional().inputs
    names = {dim for spec in inputs for dim in spec.dims if isinstance(dim, str)}
    batch = inputs[0].dims[0]
    if batch is None:
        return f"the first dimension of input '{inputs[0].name}' has no name"
    for role, spec in signature.roles():
        if spec.dims[0] != batch:
            return f"the first dimension of {role} '{spec.name}' is not '{batch}' by name"
    for spec in signature.outputs:
        if any(not isinstance(dim, int) and dim not in names for dim in spec.dims[1:]):
            return f"a dimension of output '{spec.name}' does not follow from those of the inputs"
    return None
