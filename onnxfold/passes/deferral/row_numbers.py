"""What is computed once per row of a norm's input: 1 / s^2, and powers of it in any layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.constants import weight_value
from onnxfold.graph.edit import Editor, Lowered
from onnxfold.norms.site import NormForm, NormSite
from onnxfold.passes.deferral.row_scale import Rows, RowScale

__all__ = ["RowNumbers", "epsilon_of", "mean_square"]

_AXES_ARE_INPUTS_SINCE = 13
_REDUCED_AXES_ARE_INPUTS_SINCE = 18


def _number(site: NormSite, given: float, role: str) -> ir.Value:
    """Return a constant in the type of the norm's input."""
    if site.input.dtype is None:
        raise InvariantError(f"norm '{site.name}' has no type")
    array = np.array(given, site.input.dtype.numpy())
    return weight_value(f"{site.output.name}.{role}", array)


def epsilon_of(site: NormSite) -> ir.Value:
    """Return the norm's epsilon; that of an operator is an attribute, and so float32."""
    spelled = site.form is NormForm.DECOMPOSED
    return _number(site, site.epsilon if spelled else float(np.float32(site.epsilon)), "epsilon")


def mean_square(site: NormSite, x: ir.Value, opset: int) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes and constants of factor * mean(x^2) along the norm's axes, which stay."""
    square = ir.node("Mul", [x, x])
    mean, made = _over_axes("ReduceMean", square.outputs[0], site, opset)
    nodes = [square, mean]
    if site.factor != 1.0:
        made.append(_number(site, site.factor, "factor"))
        nodes.append(ir.node("Mul", [mean.outputs[0], made[-1]]))
    return nodes, made


def _over_axes(
    op_type: str, x: ir.Value, site: NormSite, opset: int
) -> tuple[ir.Node, list[ir.Value]]:
    """Return a reduction along the norm's axes, which stay with size 1."""
    axes = list(site.fiber.axes)
    if opset < _REDUCED_AXES_ARE_INPUTS_SINCE:
        return ir.node(op_type, [x], {"axes": axes, "keepdims": 1}), []
    constant = weight_value(f"{site.output.name}.axes", np.array(axes, np.int64))
    return ir.node(op_type, [x, constant], {"keepdims": 1}), [constant]


class RowNumbers:
    """1 / s^2 = factor * mean(x^2) + epsilon of one norm and what follows from it, each made once.

    All of it is computed before the norm's last node, in the type of x.
    """

    def __init__(self, edit: Editor, site: NormSite, x: ir.Value):
        self._edit, self._site, self._place = edit, site, site.last
        self._opset = opset = edit.info.opset
        self._made: dict[tuple[str, int, Rows], ir.Value] = {}
        rank = len(x.shape or ())
        self._rows: Rows = tuple((a,) if a not in site.fiber.axes else () for a in range(rank))
        nodes, constants = mean_square(site, x, opset)
        constants.append(epsilon_of(site))
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], constants[-1]]))
        self._inverse_square = self._insert(nodes, constants, "inverse_square")

    def scale(self, wanted: RowScale) -> ir.Value:
        """Return s^degree in the layout of the value that it is multiplied to."""
        key = ("scale", wanted.degree, ())
        if key not in self._made:
            root = self._power(wanted.degree if wanted.degree % 2 else wanted.degree // 2)
            if wanted.degree % 2:
                root = self._insert([ir.node("Sqrt", [root])], [], "inverse_scale")
            self._made[key] = self._insert([ir.node("Reciprocal", [root])], [], "scale")
        return self._laid_out(self._made[key], "scale", wanted)

    def inverse_square(self, wanted: RowScale) -> ir.Value:
        """Return 1 / s^2degree in the layout of the value that it stands beside."""
        return self._laid_out(self._power(wanted.degree), "inverse_square", wanted)

    def _power(self, exponent: int) -> ir.Value:
        """Return (1 / s^2)^exponent."""
        value = self._inverse_square
        for _ in range(exponent - 1):
            node = ir.node("Mul", [value, self._inverse_square])
            value = self._insert([node], [], "inverse_power")
        return value

    def _laid_out(self, value: ir.Value, role: str, wanted: RowScale) -> ir.Value:
        """Return numbers of the rows as a tensor that broadcasts to a value with other axes."""
        key = (role, wanted.degree, wanted.rows)
        if wanted.rows != self._rows and key not in self._made:
            self._made[key] = self._moved(value, role, wanted.rows)
        return self._made.get(key, value)

    def _moved(self, value: ir.Value, role: str, rows: Rows) -> ir.Value:
        if any(len(merged) > 1 for merged in rows):  # all of them
            sizes = np.array([-1 if merged else 1 for merged in rows], np.int64)
            constant = weight_value(f"{self._site.output.name}.sizes", sizes)
            return self._insert([ir.node("Reshape", [value, constant])], [constant], role)
        kept = [row for merged in rows for row in merged]
        gone = [axis for axis in range(len(self._rows)) if axis not in kept]
        if gone:
            value = self._axes("Squeeze", value, gone)
        if kept != sorted(kept):
            order = [sorted(kept).index(row) for row in kept]
            value = self._insert([ir.node("Transpose", [value], {"perm": order})], [], role)
        repeated = [axis for axis, merged in enumerate(rows) if not merged]
        return self._axes("Unsqueeze", value, repeated) if repeated else value

    def _axes(self, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        if self._opset < _AXES_ARE_INPUTS_SINCE:
            return self._insert([ir.node(op_type, [value], {"axes": list(axes)})], [], "rows")
        constant = weight_value(f"{self._site.output.name}.axes", np.array(axes, np.int64))
        return self._insert([ir.node(op_type, [value, constant])], [constant], "rows")

    def _insert(self, nodes: list[ir.Node], constants: list[ir.Value], role: str) -> ir.Value:
        """Put nodes before the norm's last one; return what the last of them gives."""
        for node in nodes:
            node.outputs[0].name = f"{self._site.output.name}.{role}"
            node.outputs[0].type = self._site.input.type
        lowered = Lowered(tuple(nodes), (), tuple(constants))
        result = self._edit.compute_before(self._place, lowered)
        for node in nodes:
            node.name = node.outputs[0].name  # which is unique by now
        return result
