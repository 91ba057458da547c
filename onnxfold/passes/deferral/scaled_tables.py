"""Multiplies factors by the scale of a row: of products, and the tables of rotary embeddings.

RotaryEmbedding addresses tables [positions, h/2] by position.  With s, which differs from row to
row, it reads what they hold at the positions instead: [B, S, h/2] without positions, or, where the
operator knows tables of two axes alone, [B S, h/2] at the positions 0, 1, 2, ... .
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph.constants import weight_value
from onnxfold.graph.edit import Editor, Lowered, set_input
from onnxfold.graph.operands import known_operand
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.plan import ScaledTable
from onnxfold.passes.deferral.row_numbers import RowNumbers, as_type
from onnxfold.passes.deferral.row_scale import RowScale


def product(value: ir.Value, scale: ir.Value) -> list[ir.Node]:
    """Return the nodes that multiply a value in the type of its scale and round the product.

    The scale stands first: as second factor of a product with another Mul behind, ONNX Runtime's
    transformers optimizer takes it for a norm's and raises TypeError.
    """
    nodes = as_type(value, scale.dtype)
    nodes.append(ir.node("Mul", [scale, nodes[-1].outputs[0] if nodes else value]))
    nodes[-1].outputs[0].type = scale.type
    return nodes + as_type(nodes[-1].outputs[0], value.dtype)


class TableEditor:
    """The scaled tables of one norm, each made once for all nodes that read it at its positions."""

    def __init__(self, edit: Editor, rows: RowNumbers):
        self._edit, self._rows = edit, rows
        self._scaled: dict[tuple[ir.Value, ir.Value | None, RowScale], ir.Value] = {}

    def scale(self, node: ir.Node, table: ScaledTable) -> None:
        """Let a node read its factors times the scale."""
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
            found = self._before(node, [ir.node("Gather", [factor, positions])], f"{name}.rows")
            found.type = factor.type
        return self._before(node, product(found, self._rows.scale(scale)), f"{name}.scaled")

    def _flat(self, node: ir.Node, positions: ir.Value) -> ir.Value:
        sizes = weight_value(f"{positions.name}.all", np.array([-1]))
        flat = [ir.node("Reshape", [positions, sizes])]
        return self._before(node, flat, f"{positions.name}.flat", sizes)

    def _counted(self, node: ir.Node, positions: ir.Value) -> ir.Value:
        """Return 0, 1, 2, ... in the shape of the positions."""
        name, numbers = f"{positions.name}.counted", (np.array(0), np.array(1))
        start, step = (weight_value(f"{name}.{int(number)}", number) for number in numbers)
        size, shape = ir.node("Size", [positions]), ir.node("Shape", [positions])
        count = ir.node("Range", [start, size.outputs[0], step])
        nodes = [size, shape, count, ir.node("Reshape", [count.outputs[0], shape.outputs[0]])]
        return self._before(node, nodes, name, start, step)

    def _before(
        self, place: ir.Node, nodes: list[ir.Node], name: str, *constants: ir.Value
    ) -> ir.Value:
        """Put nodes, of integers unless they have a type, before another; return their result."""
        for each in nodes:
            each.outputs[0].name = name
            each.outputs[0].type = each.outputs[0].type or ir.TensorType(ir.DataType.INT64)
        return self._edit.compute_before(place, Lowered(tuple(nodes), (), constants))
