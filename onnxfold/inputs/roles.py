"""The meaning of integer and boolean inputs: indices into tables, or masks."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import constant_tensor, operator
from onnxfold.graph.operands import producer_of
from onnxfold.operators import facets
from onnxfold.operators.table import row_of

MASK = re.compile(r"mask", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Values that are valid in an input: low <= value < high."""

    low: int
    high: int

    def meet(self, other: "IndexRange") -> "IndexRange":
        return IndexRange(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Arrival:
    """An input's numbers, moved and shifted by a constant, at one input of a node."""

    node: ir.Node
    index: int
    shift: int


def _moves(node: ir.Node, index: int) -> bool:
    row = row_of(node)
    return facets.moves_numbers(row) and index in facets.data_inputs(row, len(node.inputs))


def _keeps_channels(node: ir.Node, index: int) -> bool:
    return _moves(node, index) or facets.positionwise(row_of(node))


def arrivals(
    model: ir.Model, value: ir.Value, through: Callable[[ir.Node, int], bool] = _moves
) -> Iterator[Arrival]:
    """Follow a value downstream ``through`` some nodes and additions of a constant.

    If negative indices count from the end, as frameworks write it, other indices pass unchanged: i
    + (i < 0) * rows, and Where(i < 0, i + rows, i).
    """
    seen: set[tuple[ir.Value, int]] = set()
    open_ends = [(value, 0)]
    while open_ends:
        current, shift = open_ends.pop()
        if (current, shift) in seen or len(seen) > 10_000:
            continue
        seen.add((current, shift))
        for node, index in current.uses():
            yield Arrival(node, index, shift)
            function = model.functions.get(node.op_identifier())
            if function is not None and index < len(function.inputs):
                open_ends.append((function.inputs[index], shift))
            elif through(node, index) and not _is_for_negatives(node, index):
                open_ends.extend((output, shift) for output in node.outputs)
            elif operator(node) in ("Add", "Sub"):
                offset = _offset(node.inputs[1 - index])
                if offset is not None and (node.op_type == "Add" or index == 0):
                    step = offset if node.op_type == "Add" else -offset
                    open_ends.append((node.outputs[0], shift + step))


def _is_for_negatives(node: ir.Node, index: int) -> bool:
    """Whether an input of Where is chosen for negative indices alone."""
    chosen = _of_negatives(node.inputs[0]) if operator(node) == "Where" else None
    return chosen is not None and index == (1 if chosen else 2)


def _of_negatives(condition: ir.Value | None) -> bool | None:
    """Return the result of a condition for negative numbers if it is the opposite for others."""
    node = producer_of(condition)
    if node is None:
        return None
    if operator(node) == "Not":
        inner = _of_negatives(node.inputs[0])
        return None if inner is None else not inner
    if operator(node) not in _COMPARISONS:
        return None
    zeros = [_constant(operand) == 0 for operand in node.inputs]
    below, above = _COMPARISONS[operator(node)]
    return {(False, True): below, (True, False): above}.get((zeros[0], zeros[1]))


# The results of i < 0 and 0 < i, written with each operator, for negative numbers.
_COMPARISONS: dict[str, tuple[bool | None, bool | None]] = {
    "Less": (True, None),
    "Greater": (None, True),
    "GreaterOrEqual": (False, None),
    "LessOrEqual": (None, False),
}


def _offset(value: ir.Value | None) -> int | None:
    """Return the number added to nonnegative indices, if it is known."""
    node = producer_of(value)
    if node is not None and operator(node) == "Mul":
        return 0 if any(_vanishes(operand) for operand in node.inputs) else None
    return 0 if _vanishes(value) else _constant(value)


def _vanishes(value: ir.Value | None) -> bool:
    """Whether a value is 0 where an index is nonnegative."""
    node = producer_of(value)
    if node is None:
        return False
    if operator(node) == "Cast":
        return _of_negatives(node.inputs[0]) is True
    others = [
        value for index, value in enumerate(node.inputs) if not _is_for_negatives(node, index)
    ]
    return operator(node) == "Where" and len(others) == 2 and _constant(others[1]) == 0


def _constant(value: ir.Value | None) -> int | None:
    """Return the only whole number in a constant, which a Cast may convert."""
    while (node := producer_of(value)) is not None and operator(node) == "Cast":
        value = node.inputs[0]
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1:
        return None
    number = float(np.asarray(tensor.numpy()).reshape(-1)[0])
    return int(number) if number.is_integer() else None


def _rows(arrival: Arrival) -> int | None:
    """Return the number of rows of the table that an index addresses; None if unknown."""
    node = arrival.node
    place = dict(row_of(node).tables).get(arrival.index)
    if place is None or place >= len(node.inputs):
        return None
    shape = _table_shape(node.inputs[place])
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if not -len(shape) <= axis < len(shape):
        return None
    rows = shape[axis]
    return rows if isinstance(rows, int) else None


def _table_shape(table: ir.Value | None) -> tuple[object, ...]:
    """Return the shape of a table, which may be stored in another type or order; () if unknown."""
    orders: list[Sequence[int]] = []
    while table is not None:
        tensor = constant_tensor(table)
        known = table.shape if tensor is None else tensor.shape
        if known is not None:
            return _ordered(tuple(known), orders[::-1])
        maker = table.producer()
        # The shape of these two is not that of rows: one is transposed, the other unchanged.
        if maker is None or not (
            facets.same_shape(row_of(maker)) or operator(maker) in ("DequantizeLinear", "Transpose")
        ):
            return ()
        if operator(maker) == "Transpose":
            orders.append(maker.attributes.get_ints("perm", ()))
        table = maker.inputs[0]
    return ()


def _ordered(shape: tuple[object, ...], orders: Sequence[Sequence[int]]) -> tuple[object, ...]:
    axes = range(len(shape))
    for order in orders:
        places = order or axes[::-1]
        if sorted(places) != list(axes):
            return ()
        shape = tuple(shape[axis] for axis in places)
    return shape


def index_range(model: ir.Model, value: ir.Value) -> IndexRange | None:
    """Return the values that keep an integer input inside every table that it indexes, or None."""
    found: IndexRange | None = None
    for arrival in arrivals(model, value):
        rows = _rows(arrival)
        if rows is not None:
            own = IndexRange(max(0, -arrival.shift), rows - arrival.shift)
            found = own if found is None else found.meet(own)
    return found


def becomes_integer(model: ir.Model, value: ir.Value) -> bool:
    """Whether floats are cast to integers: tokens of Keras, positions, numbers of bins."""
    found = arrivals(model, value, _keeps_channels)
    casts = (a.node for a in found if operator(a.node) == "Cast")
    return any(ir.DataType(node.attributes["to"].as_int()).is_integer() for node in casts)


def is_mask(model: ir.Model, value: ir.Value) -> bool:
    """Whether an input that indexes nothing is a mask of ones and zeros.

    By its name, or because it becomes a condition: cast to bool, compared, or used as 1 - mask.
    """
    if MASK.search(str(value.name)):
        return True
    for arrival in arrivals(model, value):
        node = arrival.node
        row = row_of(node)
        if arrival.index in row.masks or row.decides:
            return True
        if operator(node) == "Cast" and node.attributes["to"].as_int() == ir.DataType.BOOL:
            return True
        if operator(node) == "Sub" and arrival.index == 1 and _constant(node.inputs[0]) == 1:
            return True
    return False


def convolved_channels(model: ir.Model, value: ir.Value) -> int | None:
    """Return the channels that a convolved input must have.

    None if it is not convolved as an image.

    An image may be normalized first, by a mean and a deviation of each channel.
    """
    rank = None if value.shape is None else len(value.shape)
    for arrival in arrivals(model, value, _keeps_channels):
        node = arrival.node
        if operator(node) != "Conv" or arrival.index != 0 or len(node.inputs) < 2:
            continue
        weight = constant_tensor(node.inputs[1])
        if weight is not None and len(weight.shape) == rank:
            group = node.attributes["group"].as_int() if "group" in node.attributes else 1
            return int(weight.shape.numpy()[1]) * group
    return None


def is_convolved(model: ir.Model, value: ir.Value) -> bool:
    """Whether the value reaches the data input of a Conv, only moved on the way."""
    return any(a.node.op_type == "Conv" and a.index == 0 for a in arrivals(model, value))
