"""Factors that absorb a scale instead of their cofactors: tables that heads share.

A product x t becomes x (s t). A rotary embedding x cos + rotate(x) sin is linear in (cos, sin) too,
so s is multiplied to both: 2 h multiplications per row (h for RotaryEmbedding, whose tables have
each number once) for all heads, of queries and keys together.

Source: N. Graef, M. Clapp, A. Wasielewski, "Flash normalization" (arXiv:2407.09577), section 3.

Factors multiplied by the scale of a row: of products, and in the tables of rotary embeddings.

RotaryEmbedding addresses tables [positions, h/2] by position. With s, which differs from row to
row, it reads their entries at the positions instead: [B, S, h/2] without positions, or, if the
operator only supports tables of two axes, [B S, h/2] at the positions 0, 1, 2, ...
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor, set_input
from onnxfold.graph.operands import known_operand
from onnxfold.operators import facets
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.plan import ScaledTable
from onnxfold.passes.deferral.row_numbers import RowNumbers
from onnxfold.passes.deferral.row_scale import RowScale
from onnxfold.targets.costs import elements


@dataclass(frozen=True, slots=True)
class Table:
    """Inputs of a node, without a scale, that may be multiplied by ``scale`` instead of another.

    ``width``: the elements of each for one row.
    """

    indices: tuple[int, ...]
    width: int
    scale: RowScale


def tables_of(
    info: ModelInfo, node: ir.Node, scaled: Mapping[int, RowScale], passed: RowScale
) -> Table | None:
    """Return other inputs that may absorb the scale of a node's only scaled input, or None.

    ``passed`` is the scale of the node's result.
    """
    row = row_of(node)
    if len(scaled) != 1:
        return None
    if row.rotates is not None:
        return _of_rotary(info, node, passed) if set(scaled) == {0} else None
    others = [index for index in facets.factors(row) if index not in scaled]
    value = node.inputs[others[0]] if len(others) == 1 else None
    shape = None if value is None else info.shape(value)
    if shape is None:
        return None
    inner = [dim for dim, row in zip(shape[::-1], passed.rows[::-1], strict=False) if not row]
    if not all(type(dim) is int for dim in inner):
        return None
    return Table((others[0],), elements(tuple(inner)), passed)


def _of_rotary(info: ModelInfo, node: ir.Node, passed: RowScale) -> Table | None:
    """Return cos and sin if they rotate every channel of every head, and no head has its own s."""
    cos, sin, positions = row_of(node).rotates or (0, 0, 0)
    shape = info.shape(node.inputs[cos])
    if shape is None or not isinstance(shape[-1], int) or not _turns_all(info, node, shape[-1]):
        return None
    layout = passed.rows
    if len(layout) == 4:
        if layout[1]:
            return None
        layout = (layout[0], layout[2], layout[3])
    if len(layout) != 3 or layout[-1] or any(len(merged) > 1 for merged in layout):
        return None
    if positions < cos:  # tables of two axes alone: rows of s follow the positions
        if info.rank(node.inputs[positions]) != 2 or layout[:2] != ((0,), (1,)):
            return None
        layout = ((0, 1), ())
    return Table((cos, sin), shape[-1], RowScale(passed.degree, layout))


def _turns_all(info: ModelInfo, node: ir.Node, half: int) -> bool:
    shape, turned = info.shape(node.inputs[0]), node.attributes.get_int("rotary_embedding_dim", 0)
    if shape is None or turned not in (0, 2 * half):
        return False
    heads = node.attributes.get_int("num_heads", 0)
    if len(shape) == 4:
        return shape[3] == 2 * half
    return turned == 0 and (heads == 0 or shape[2] == heads * 2 * half)


def product(new: NewNodes, value: ir.Value, scale: ir.Value) -> ir.Value:
    """Return a value times a scale, multiplied in the type of the scale, and rounded.

    The scale comes first: as the second factor of a product with another Mul after it, ONNX
    Runtime's transformers optimizer mistakes it for a norm's and raises TypeError.
    """
    result = new.op("Mul", scale, new.cast(value, scale.dtype))
    result.type = scale.type
    return new.cast(result, value.dtype)


class TableEditor:
    """The scaled tables of one norm, each made once for all nodes that read it at its positions."""

    def __init__(self, edit: Editor, rows: RowNumbers):
        self._edit, self._rows = edit, rows
        self._scaled: dict[tuple[ir.Value, ir.Value | None, RowScale], ir.Value] = {}

    def scale(self, node: ir.Node, table: ScaledTable) -> None:
        """Make a node read its factors times the scale."""
        rotary = row_of(node).rotates
        place = None if rotary is None else rotary[2]
        positions = None if place is None else [*node.inputs, None][place]
        for index in table.indices:
            key = (known_operand(node, index), positions, table.scale)
            if key not in self._scaled:
                self._scaled[key] = self._made(node, *key)
            set_input(node, index, self._scaled[key])
        if place is not None and positions is not None:
            flat = len(table.scale.rows) == 2
            set_input(node, place, self._counted(node, positions) if flat else None)

    def _made(
        self, node: ir.Node, factor: ir.Value, positions: ir.Value | None, scale: RowScale
    ) -> ir.Value:
        name, found = factor.name, factor
        if positions is not None:
            if len(scale.rows) == 2:
                positions = self._flat(node, positions)
            new = self._new()
            new.op("Gather", factor, positions)
            found = self._before(node, new, f"{name}.rows")
            found.type = factor.type
        new = self._new()
        product(new, found, self._rows.scale(scale))
        return self._before(node, new, f"{name}.scaled")

    def _flat(self, node: ir.Node, positions: ir.Value) -> ir.Value:
        new = self._new()
        new.op("Reshape", positions, new.integers(f"{positions.name}.all", [-1]))
        return self._before(node, new, f"{positions.name}.flat")

    def _counted(self, node: ir.Node, positions: ir.Value) -> ir.Value:
        """Return 0, 1, 2, ... in the shape of the positions."""
        new, name = self._new(), f"{positions.name}.counted"
        start, step = (new.weight(f"{name}.{number}", np.array(number)) for number in (0, 1))
        size, shape = new.op("Size", positions), new.op("Shape", positions)
        new.op("Reshape", new.op("Range", start, size, step), shape)
        return self._before(node, new, name)

    def _new(self) -> NewNodes:
        return NewNodes(self._edit.info.opset)

    def _before(self, place: ir.Node, new: NewNodes, name: str) -> ir.Value:
        """Insert nodes, of integers unless they have a type, before another.

        Return their result.
        """
        for each in new.nodes:
            each.outputs[0].name = name
            each.outputs[0].type = each.outputs[0].type or ir.TensorType(ir.DataType.INT64)
        return self._edit.compute_before(place, new)
