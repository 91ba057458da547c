"""Sizes that a model reads from one tensor's shape and passes to another: Reshape(y, Shape(x)).

If both are of one stream, such a number of channels follows by itself when the stream changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader, operator
from onnxfold.operators import facets
from onnxfold.operators.table import row_of


@dataclass(frozen=True, slots=True)
class SizeReader:
    """A node input that reads a size, at a position of a vector."""

    reader: Reader
    position: int


def follows(
    info: ModelInfo, shape: ir.Value | None, position: int, channels: Mapping[ir.Value, int]
) -> bool:
    """Whether an entry of a shape is the number of channels of a named value.

    ``channels``: the axis of each.
    """
    while shape is not None and (node := shape.producer()) is not None and not node.domain:
        if node.op_type == "Shape":
            source, start = node.inputs[0], node.attributes.get_int("start", 0)
            rank = info.rank(source) or 0
            axis = position + (start + rank if start < 0 else start)
            return source is not None and channels.get(source) == axis
        step = _before(info, node, position)
        if step is None:
            return False
        shape, position = step
    return False


def _before(info: ModelInfo, node: ir.Node, position: int) -> tuple[ir.Value | None, int] | None:
    """Return which operand, and which of its entries, is an entry of a result."""
    if facets.keeps_order(row_of(node)):
        return node.inputs[0], position
    if node.op_type == "Concat":
        for operand in node.inputs:
            length = info.dim(operand, 0)
            if not isinstance(length, int):
                return None
            if position < length:
                return operand, position
            position -= length
        return None
    taken = _taken(info, node)
    return None if taken is None or position >= len(taken) else (node.inputs[0], taken[position])


def size_readers(info: ModelInfo, value: ir.Value, position: int) -> Iterator[SizeReader | None]:
    """Yield the final readers of an entry of a vector; None if unknown."""
    if info.is_output(value):
        yield None
    for reader in info.readers(value):
        node = reader.node
        row = row_of(node)
        passes = facets.keeps_order(row) or operator(node) in ("Concat", "Gather", "Slice")
        if not passes or (facets.keeps_order(row) and reader.index > 0):
            yield SizeReader(reader, position)
            continue
        for following in _behind(info, reader, position):
            yield from (
                (None,) if following is None else size_readers(info, node.outputs[0], following)
            )


def _behind(info: ModelInfo, reader: Reader, position: int) -> tuple[int | None, ...]:
    """Return the entries of a result that an entry becomes; None if unknown."""
    node = reader.node
    if facets.keeps_order(row_of(node)):
        return (position,)
    if node.op_type == "Concat":
        lengths = [info.dim(operand, 0) for operand in node.inputs[: reader.index]]
        if not all(isinstance(length, int) for length in lengths):
            return (None,)
        return (position + sum(n for n in lengths if isinstance(n, int)),)
    taken = _taken(info, node) if reader.index == 0 else None
    if taken is None:
        return (None,)
    return tuple(place for place, entry in enumerate(taken) if entry == position)


def _taken(info: ModelInfo, node: ir.Node) -> list[int] | None:
    """Return which entries of a vector a Gather or Slice picks, in order."""
    length = info.dim(node.inputs[0], 0) if node.op_type in ("Gather", "Slice") else None
    if not isinstance(length, int) or not length:
        return None
    if node.op_type == "Gather":
        indices = info.integers(node.inputs[1])
        return None if indices is None else [index % length for index in indices]
    if node.op_type != "Slice" or len(node.inputs) < 3:
        return None
    numbers = [info.integers(operand) for operand in node.inputs[1:]]
    if any(part is None or len(part) != 1 for part in numbers):
        return None
    given = [part[0] for part in numbers if part]
    start, end, step = (*given[:2], given[3] if len(given) > 3 else 1)
    return None if step == 0 else list(range(length))[start:end:step]
