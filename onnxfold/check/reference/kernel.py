"""Kernels: numpy functions for one operator each, in one of two precisions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any, TypeAlias, TypeVar, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.graph import constant_tensor, node_label, operator
from onnxfold.graph.constants import attribute_tensor
from onnxfold.operators.row import Family
from onnxfold.operators.table import find, row_of

Array: TypeAlias = npt.NDArray[Any]

_FLOAT64 = np.dtype(np.float64)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_HALVES = frozenset({np.dtype(np.float16), _BFLOAT16})
# Formats of eight bits and fewer are quantization: part of the function, not rounding noise.
_QUANTIZED = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
    )
)
# Half the distance from 1 to the next number: rounding to nearest errs by at most this, relatively.
_UNIT_ROUNDOFF = {
    np.dtype(np.float16): 2.0**-11,
    _BFLOAT16: 2.0**-8,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float64): 2.0**-53,
}


class Precision(enum.Enum):
    """FLOAT64 represents every tensor of 16 and more bits in float64, for the truth.

    NATIVE computes each operator in the types of the model; 16-bit floats are computed in float32
    and rounded to the type after each op, as runtimes do.
    """

    FLOAT64 = "float64"
    NATIVE = "native"


def is_half(dtype: np.dtype[Any]) -> bool:
    return dtype in _HALVES


def is_quantized_float(dtype: np.dtype[Any]) -> bool:
    return dtype in _QUANTIZED


def is_code(dtype: np.dtype[Any]) -> bool:
    """Whether numbers have eight bits or fewer, so that rounding to them takes large steps."""
    return dtype.itemsize == 1 and dtype.kind not in "bSU"


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether this is a real floating type of ONNX, not complex, integer, boolean or string."""
    return dtype.kind == "f" or dtype in _HALVES or dtype in _QUANTIZED


def is_wide_float(dtype: np.dtype[Any]) -> bool:
    """Whether this is a floating type of 16 bits or more, whose last places are rounding noise."""
    return is_floating(dtype) and not is_quantized_float(dtype)


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Return the relative error bound of rounding to a wide floating type: 2**-24 for float32.

    Raises KeyError for other types than float16, bfloat16, float32 and float64.
    """
    return _UNIT_ROUNDOFF[np.dtype(dtype)]


def carried(array: Array, precision: Precision) -> Array:
    """Return the array in the type in which `precision` represents it between nodes."""
    if precision is Precision.FLOAT64 and array.dtype != _FLOAT64 and is_wide_float(array.dtype):
        return array.astype(_FLOAT64)
    return array


# The value of an edge: a tensor, a sequence of tensors, or nothing (an absent optional).
Datum: TypeAlias = "Array | list[Array] | None"
# One result, or a tuple of them.
Output: TypeAlias = "Datum | tuple[Datum, ...]"
Function = TypeVar("Function", bound=Callable[..., object])
# No model that a check could run has a result with more elements.
MOST_ELEMENTS = 2**28
RunGraph: TypeAlias = Callable[[ir.Graph, Sequence[Datum]], list[Datum]]


class UnsupportedOperator(ModelError):  # noqa: N818
    """The interpreter lacks a kernel for a node, or for its attributes and inputs."""

    @classmethod
    def at(cls, node: ir.Node, why: str) -> UnsupportedOperator:
        return cls(f"node {node_label(node)!r} ({operator(node)}): {why}")


class ResourceLimitError(ModelError):
    """A model asks for more than a check of it is worth, or for what would end its process."""


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a node: its attributes with references resolved, opset and precision."""

    node: ir.Node
    attributes: Mapping[str, ir.Attr]
    version: int
    precision: Precision
    run_graph: RunGraph

    def has(self, name: str) -> bool:
        return name in self.attributes

    def integer(self, name: str, default: int) -> int:
        return self.attributes[name].as_int() if name in self.attributes else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        return tuple(self.attributes[name].as_ints()) if name in self.attributes else None

    def real(self, name: str, default: float) -> float:
        """The attribute as float64; ONNX stores a float32, so 1e-5 reads as float32(1e-5)."""
        value = self.attributes[name].as_float() if name in self.attributes else default
        return float(np.float32(value))

    def unrounded(self, name: str, default: float) -> float:
        """The attribute as a new node holds it, which a file will round to float32 as a weight."""
        return self.attributes[name].as_float() if name in self.attributes else default

    def text(self, name: str, default: str) -> str:
        return self.attributes[name].as_string() if name in self.attributes else default

    def graph(self, name: str) -> ir.Graph:
        return self.attributes[name].as_graph()

    def tensor(self, name: str) -> ir.TensorProtocol | None:
        return attribute_tensor(self.attributes[name]) if name in self.attributes else None

    def wants(self, index: int) -> bool:
        """Whether the node's output `index` exists."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index].name)

    def check_size(self, shape: Iterable[float]) -> None:
        """Refuse a result whose size is a number in the model, before it is allocated."""
        check_size(self.node, prod(float(size) for size in shape))

    def unsupported(self, why: str) -> UnsupportedOperator:
        return UnsupportedOperator.at(self.node, why)


def check_size(node: ir.Node, elements: float) -> None:
    """Refuse a result of more elements than any check is worth."""
    if elements > MOST_ELEMENTS:
        raise ResourceLimitError(
            f"node {node_label(node)!r} ({operator(node)}) asks for {elements:.3g} elements; "
            "give other inputs (--inputs), or leave out the check (--check 0)"
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function `(call, *inputs) -> output or tuple of outputs`.

    raw: it accepts arrays as they are stored (16-bit floats and initializers unconverted), because
    it only moves numbers (a Gather converts the gathered rows alone) or handles precision itself.
    narrow: the input that a FLOAT64 run passes as it is stored, because the kernel widens it in
    parts. result_like: for each output the input whose floating type it has; None: the type that
    the kernel returns. By default the operator's schema decides. broadcasts: its result has the
    common broadcast shape of all inputs, which is not allocated if it is too large.
    """

    function: Callable[..., Output]
    raw: bool = False
    result_like: tuple[int | None, ...] | None = None
    narrow: int | None = None
    broadcasts: bool = False


_KERNELS: dict[tuple[str, str], Kernel] = {}


def kernel(
    *names: str,
    domain: str = "",
    raw: bool = False,
    result_like: tuple[int | None, ...] | None = None,
    narrow: int | None = None,
    broadcasts: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as the kernel of the named operators; a second one for a name raises."""

    def register(function: Function) -> Function:
        for name in names:
            if (domain, name) in _KERNELS:
                raise ValueError(f"two kernels for {domain}.{name}")
            _KERNELS[domain, name] = Kernel(
                cast("Callable[..., Output]", function), raw, result_like, narrow, broadcasts
            )
        return function

    return register


def find_kernel(domain: str, name: str) -> Kernel | None:
    """Return the kernel of an operator; its module is imported by the first call."""
    module = find(domain, name).kernel
    if module:
        import_module(f"onnxfold.check.reference.kernels.{module}")
    return _KERNELS.get((domain, name))


def is_stochastic(node: ir.Node) -> bool:
    """Whether a node may draw random numbers, as Dropout does in training mode."""
    row = row_of(node)
    return row.random or (row.family is Family.DROPOUT and _may_train(node))


def _may_train(node: ir.Node) -> bool:
    told = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = constant_tensor(told)
    return told is not None and (tensor is None or bool(tensor.numpy().any()))


@lru_cache(maxsize=4096)
def _types_of_results(domain: str, name: str, version: int) -> tuple[int | None, ...] | None:
    """Return for each output the input with the same type variable; None if the schema has none."""
    if not onnx.defs.has(name, domain):
        return None
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
    inputs = [parameter.type_str for parameter in schema.inputs]
    return tuple(
        inputs.index(parameter.type_str) if parameter.type_str in inputs else None
        for parameter in schema.outputs
    )


def rounded(
    results: list[Datum], inputs: Sequence[Datum], found: Kernel, key: tuple[str, str, int]
) -> list[Datum]:
    """Return floating results in the types that the operator declares; 16-bit ones are rounded."""
    like = found.result_like or _types_of_results(*key)
    rounded: list[Datum] = []
    for position, result in enumerate(results):
        source: int | None = 0
        if like is not None:
            source = like[min(position, len(like) - 1)]
        dtype = _floating_dtype(inputs, source)
        if dtype is not None and isinstance(result, np.ndarray) and is_floating(result.dtype):
            rounded.append(result.astype(dtype, copy=False))
        else:
            rounded.append(result)
    return rounded


def _floating_dtype(inputs: Sequence[Datum], source: int | None) -> np.dtype[Any] | None:
    if source is None or source >= len(inputs):
        return None
    datum = inputs[source]
    if isinstance(datum, np.ndarray) and is_floating(datum.dtype):
        return datum.dtype
    return None
