"""Powers of 1 / s^2 = mean(x^2) + eps in a graph: s itself, s^2, 1 / s^4, in any layout."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.traversal import NodeQueue
from onnxfold.operators import facets
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.row_scale import Rows, RowScale, passed_on


@dataclass(frozen=True, slots=True)
class RowPower:
    """(1 / s^2)^exponent, one number for each row of s; ``rows`` as in RowScale."""

    exponent: float
    rows: Rows

    def is_scale(self, scale: RowScale, rank: int) -> bool:
        """Whether this is s^degree for a value of a rank with the scale."""
        return self.exponent == -scale.degree / 2 and self.beside(scale, rank)

    def is_inverse_square(self, scale: RowScale, rank: int) -> bool:
        """Whether this is 1 / s^2degree for a value of a rank with the scale."""
        return self.exponent == scale.degree and self.beside(scale, rank)

    def beside(self, scale: RowScale, rank: int) -> bool:
        """Whether every row of a value with the scale is combined with its own number."""
        return ((),) * (rank - len(self.rows)) + self.rows == scale.rows


def row_powers(
    info: ModelInfo, start: ir.Value, rows: Rows, order: Mapping[ir.Node, int]
) -> dict[ir.Value, RowPower]:
    """Return every power that the graph of ``order`` computes from ``start``, in order."""
    found = {start: RowPower(1.0, rows)}
    queue = NodeQueue(order)
    queue.add_readers(start)
    for node in queue:
        power = _power(info, node, found)
        if power is not None:
            found[node.outputs[0]] = power
            queue.add_readers(node.outputs[0])
    return found


def _power(info: ModelInfo, node: ir.Node, found: Mapping[ir.Value, RowPower]) -> RowPower | None:
    """Return a node's result as a power, or None."""
    given = [found.get(value) for value in node.inputs if value is not None]
    first = given[0] if given else None
    row = row_of(node)
    if row.family is Family.PRODUCT and len(given) == 2:
        second = given[1]
        if first is None or second is None or first.rows != second.rows:
            return None
        return RowPower(first.exponent + second.exponent, first.rows)
    if node.domain == "" and node.op_type == "Div" and first is None:
        second, numerator = given[1], info.scalar(node.inputs[0])
        return RowPower(-second.exponent, second.rows) if second and numerator == 1.0 else None
    if first is None:
        return None
    if node.domain == "" and node.op_type in _EXPONENTS:
        return RowPower(first.exponent * _EXPONENTS[node.op_type], first.rows)
    if node.domain == "" and node.op_type == "Pow":
        exponent = info.scalar(node.inputs[1])
        return None if exponent is None else RowPower(first.exponent * exponent, first.rows)
    if not (facets.moves_numbers(row) or row.family is Family.CAST):
        return None
    moved = passed_on(info, node, {0: RowScale(1, first.rows)})
    return None if moved is None else RowPower(first.exponent, moved.rows)


_EXPONENTS: Mapping[str, float] = {"Sqrt": 0.5, "Reciprocal": -1.0}
