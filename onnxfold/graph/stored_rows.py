"""Rows of tensors, some MiB at a time, so that no tensor need be whole in memory."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import onnx_ir as ir

from onnxfold.graph.array_types import Array, Float64
from onnxfold.model_io.file_tensor import release

_ROWS_BYTES = 2 << 20

First = TypeVar("First", Float64, Array)


def stored_rows(tensor: ir.TensorProtocol) -> Iterator[Array]:
    """Yield the rows of a tensor as they are stored; a computed one has ``parts``."""
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
