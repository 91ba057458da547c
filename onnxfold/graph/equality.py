"""Equality of the nodes and constants of two models, of tensors some rows at a time."""

from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph.constants import Array, Float64, attribute_tensor
from onnxfold.model_io.mapped import release

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_ROWS_BYTES = 2 << 20

First = TypeVar("First", Float64, Array)


def stored_rows(tensor: ir.TensorProtocol) -> Iterator[Array]:
    """Yield the rows of a tensor as they are stored, some MiB at a time.

    A computed one has ``parts``; no tensor need be whole in memory.
    """
    parts = getattr(tensor, "parts", None)
    if parts is not None:
        yield from (part.reshape(part.shape or (1,)) for part in parts())
        return
    shape = tuple(tensor.shape.numpy()) or (1,)
    W = tensor.numpy().reshape(shape)
    step = max(1, _ROWS_BYTES * shape[0] // max(1, W.size * W.itemsize))
    for start in range(0, shape[0], step):
        rows = W[start : start + step]
        yield rows
        release(rows)


def paired_rows(first: Iterable[First], second: Iterable[Array]) -> Iterator[tuple[First, Array]]:
    """Yield the same rows of two arrays that come in parts of different numbers of rows."""
    others = iter(second)
    rest: Array | None = None
    for part in first:
        start = 0
        while start < part.shape[0]:
            if rest is None or not rest.shape[0]:
                rest = next(others)
            count = min(part.shape[0] - start, rest.shape[0])
            yield part[start : start + count], rest[:count]
            rest, start = rest[count:], start + count


def pairs(node: ir.Node, twin: ir.Node) -> tuple[tuple[ir.Value | None, ir.Value | None], ...]:
    """Pair the inputs of two nodes, with None for missing trailing ones."""
    length = max(len(node.inputs), len(twin.inputs))
    filled = [[*n.inputs, *(None,) * (length - len(n.inputs))] for n in (node, twin)]
    return tuple(zip(*filled, strict=True))


def same_numbers(a: npt.ArrayLike, b: npt.ArrayLike) -> bool:
    """Whether two arrays have the same shape and elements; NaN is the same as NaN."""
    first, second = np.asarray(a), np.asarray(b)
    if np.array_equal(first, second):
        return True
    if first.shape != second.shape or "O" in (first.dtype.kind, second.dtype.kind):
        return False
    either = (first == second) | (_is_nan(first) & _is_nan(second))
    return bool(np.all(either))


def _is_nan(array: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array != array, dtype=np.bool_)  # noqa: PLR0124 - of any type, bfloat16 too


def same_tensor(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether two tensors have the same type, shape and numbers."""
    same = a.dtype == b.dtype and tuple(a.shape.numpy()) == tuple(b.shape.numpy())
    rows = paired_rows(stored_rows(a), stored_rows(b)) if same else ()
    return same and all(same_numbers(first, second) for first, second in rows)


def numbers_key(array: npt.NDArray[np.generic]) -> Hashable:
    """Return a key of equal arrays of one type and shape: the bytes, or the strings themselves.

    The bytes of an array of strings are addresses of objects, which do not identify the strings.
    """
    return tuple(array.ravel().tolist()) if array.dtype.kind in "OSU" else array.tobytes()


def same_default(a: ir.Value, b: ir.Value) -> bool:
    """Whether two graph inputs have equal defaults, which callers may override, or none."""
    first, second = a.const_value, b.const_value
    if first is None or second is None or first is second:
        return first is second
    return same_tensor(first, second)


def same_attributes(a: ir.Node, b: ir.Node) -> bool:
    """Whether two nodes have equal attributes except bodies, which are compared node by node."""
    if set(a.attributes) != set(b.attributes):
        return False
    return all(_same_attribute(first, b.attributes[name]) for name, first in a.attributes.items())


def _same_attribute(a: ir.Attr, b: ir.Attr) -> bool:
    if a.type != b.type:
        return False
    if a.type in _GRAPHS:
        return True
    if a.type is ir.AttributeType.TENSOR:
        return same_tensor(attribute_tensor(a), attribute_tensor(b))
    if a.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        return same_numbers(a.value, b.value)
    return bool(a.value == b.value)
