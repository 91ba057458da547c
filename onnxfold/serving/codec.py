"""Tensors of the protocol to arrays and back; every refusal is a sentence that names the input.

A tensor is received as raw bytes (little endian, row-major; BYTES as a 4-byte length before each
element) or as a list, nested or flat. Source: the Open Inference Protocol V2 and its binary tensor
data extension.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfold.serving.served_signature import Array, ServedSignature, TensorSpec

_LENGTH = struct.Struct("<I")
_INTEGERS = frozenset("iu")
_NUMBERS = frozenset("iuf")


class RequestError(Exception):
    """A request that this model cannot answer; the sentence is sent to the client."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input as received: its declaration, and either raw bytes or a list."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | memoryview | Sequence[Any]


def decode(tensors: Sequence[Tensor], signature: ServedSignature) -> dict[str, Array]:
    """Return the arrays for ONNX Runtime, by name.

    Raises RequestError if an input is missing, unknown, repeated, of another type, rank or size
    than the model's, or has more or fewer elements than its shape.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        if tensor.name not in specs:
            raise RequestError(
                f"the model has no input '{tensor.name}'; its inputs are {_listed(specs)}"
            )
        if tensor.name in arrays:
            raise RequestError(f"input '{tensor.name}' is there twice")
        arrays[tensor.name] = _array(tensor, specs[tensor.name])
    missing = [name for name in specs if name not in arrays]
    if missing:
        raise RequestError(
            f"input '{missing[0]}' is missing; the model's inputs are {_listed(specs)}"
        )
    _check_symbols(arrays, signature.inputs)
    return arrays


def selected(names: Sequence[str] | None, signature: ServedSignature) -> tuple[str, ...]:
    """Return the outputs to compute: the requested ones, or all.

    Raises RequestError for an unknown or repeated output.
    """
    known = [spec.name for spec in signature.outputs]
    if not names:
        return tuple(known)
    for number, name in enumerate(names):
        if name not in known:
            raise RequestError(
                f"the model has no output '{name}'; its outputs are {_listed(known)}"
            )
        if name in names[:number]:
            raise RequestError(f"output '{name}' is asked for twice")
    return tuple(names)


def raw_bytes(array: Array) -> bytes:
    """Return an array as raw bytes of the protocol."""
    if array.dtype != np.object_:
        little = array.dtype.newbyteorder("<")
        return np.ascontiguousarray(array, dtype=little).tobytes()
    parts: list[bytes] = []
    for element in array.reshape(-1):
        content = element if isinstance(element, bytes) else str(element).encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def elements(array: Array) -> list[Any]:
    """Return an array as the flat list of the protocol's JSON, row-major, without NaN.

    Raises RequestError if a float is not finite, because JSON cannot represent it.
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError("an output is NaN or infinite, which JSON lacks; ask for binary data")
    flat: list[Any] = array.reshape(-1).tolist()
    return flat


def _listed(names: Mapping[str, TensorSpec] | Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _array(tensor: Tensor, spec: TensorSpec) -> Array:
    name, shape = tensor.name, tuple(tensor.shape)
    if tensor.datatype != spec.datatype.name:
        raise RequestError(f"input '{name}' must be {spec.datatype.name}, not {tensor.datatype}")
    _check_shape(shape, spec)
    count = math.prod(shape)
    if isinstance(tensor.data, (bytes, memoryview)):
        array = _from_bytes(tensor.data, spec, count)
    else:
        array = _from_list(tensor.data, spec, shape, count)
    try:
        return array.reshape(shape)
    except ValueError as error:  # no elements, and dims larger than an array can have
        raise RequestError(f"input '{name}' has dims that are too large: {error}") from error


def _check_shape(shape: tuple[int, ...], spec: TensorSpec) -> None:
    if min(shape, default=0) < 0:
        raise RequestError(
            f"the shape {_shown(shape)} of input '{spec.name}' has a negative size; a request "
            "declares every size of its data"
        )
    fits = len(shape) == len(spec.dims) and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(spec.dims, shape, strict=True)
    )
    if not fits:
        raise RequestError(
            f"input '{spec.name}' must have the shape {_shown(spec.dims)}, not {_shown(shape)}"
        )


def _shown(dims: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def _from_bytes(data: bytes | memoryview, spec: TensorSpec, count: int) -> Array:
    if spec.datatype.name == "BYTES":
        return _strings(_split(bytes(data), spec.name), spec, count)
    expected = count * spec.dtype.itemsize
    if len(data) != expected:
        raise RequestError(
            f"input '{spec.name}' has {len(data)} bytes of data, but its shape and type need "
            f"{expected}"
        )
    array = np.frombuffer(data, dtype=spec.dtype.newbyteorder("<"))
    if spec.datatype.name == "BOOL":
        if array.view(np.uint8).max(initial=0) > 1:
            raise RequestError(f"input '{spec.name}' is BOOL and has bytes other than 0 and 1")
        return array
    return array.astype(spec.dtype, copy=False)


def _split(data: bytes, name: str) -> list[bytes]:
    parts, offset = [], 0
    while offset < len(data):
        start = offset + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, offset)[0] if start <= len(data) else len(data) + 1
        if end > len(data):
            raise RequestError(f"input '{name}' ends within an element of its BYTES")
        parts.append(data[start:end])
        offset = end
    return parts


def _strings(parts: Sequence[Any], spec: TensorSpec, count: int) -> Array:
    if len(parts) != count:
        raise RequestError(
            f"input '{spec.name}' has {len(parts)} elements but its shape has {count}"
        )
    array = np.empty(count, dtype=np.object_)
    for number, part in enumerate(parts):
        if not isinstance(part, (bytes, str)):
            raise RequestError(f"input '{spec.name}' is BYTES and has other elements than strings")
        try:
            array[number] = part.decode() if isinstance(part, bytes) else part
        except UnicodeDecodeError as error:
            raise RequestError(
                f"input '{spec.name}' has bytes that are not UTF-8, which a string tensor requires"
            ) from error
    return array


def _from_list(data: Sequence[Any], spec: TensorSpec, shape: tuple[int, ...], count: int) -> Array:
    if spec.datatype.name == "BYTES":
        return _strings(_flattened(data), spec, count)
    if not count and not len(data):
        return np.empty(0, dtype=spec.dtype)
    try:
        array = _integers(data, spec) if spec.dtype.kind in _INTEGERS else np.asarray(data)
    except ValueError as error:
        raise RequestError(f"the data of input '{spec.name}' is not a tensor: {error}") from error
    if array.ndim > 1 and array.shape != shape:
        raise RequestError(
            f"the data of input '{spec.name}' is nested as {_shown(array.shape)}, its shape says "
            f"{_shown(shape)}"
        )
    if array.size != count:
        raise RequestError(
            f"input '{spec.name}' has {array.size} elements but its shape has {count}"
        )
    return _cast(array, spec)


def _integers(data: Sequence[Any], spec: TensorSpec) -> Array:
    array = np.asarray(data)
    if array.dtype.kind in _INTEGERS:
        return array
    # numpy turns integers that fit no single 64-bit type into floats, and 2**64 - 1 next to 0.
    exact = np.asarray(data, dtype=np.object_)
    if any(type(one) is not int for one in exact.reshape(-1)):
        raise RequestError(f"input '{spec.name}' is {spec.datatype.name} and has other values")
    return exact


def _cast(array: Array, spec: TensorSpec) -> Array:
    kind = spec.dtype.kind
    if kind in _INTEGERS:
        limits = np.iinfo(spec.dtype)
        low, high = int(array.min(initial=0)), int(array.max(initial=0))
        if low < limits.min or high > limits.max:
            raise RequestError(f"input '{spec.name}' has values outside of {spec.datatype.name}")
    elif array.dtype.kind not in (_NUMBERS if kind == "f" else "b"):
        raise RequestError(f"input '{spec.name}' is {spec.datatype.name} and has other values")
    with np.errstate(over="ignore"):  # a number too large for its type is infinite there
        return array.astype(spec.dtype)


def _flattened(data: Sequence[Any]) -> list[Any]:
    """Return the leaves of nested lists, each list looked at once."""
    leaves, open_lists = list[Any](), [iter(data)]
    while open_lists:
        for part in open_lists[-1]:
            if isinstance(part, list):
                open_lists.append(iter(part))
                break
            leaves.append(part)
        else:
            open_lists.pop()
    return leaves


def _check_symbols(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> None:
    """Require that a symbol has one size in all inputs."""
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        for dim, size in zip(spec.dims, arrays[spec.name].shape, strict=True):
            if not isinstance(dim, str):
                continue
            known, owner = sizes.setdefault(dim, (size, spec.name))
            if known != size:
                raise RequestError(
                    f"'{dim}' is {size} in input '{spec.name}' and {known} in '{owner}'"
                )
