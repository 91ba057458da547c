"""What is computed once per row of a norm's input: 1 / s^2, and powers of it in any layout."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.graph.constants import weight_value
from onnxfold.graph.edit import Editor, Lowered
from onnxfold.norms.site import NormForm, NormSite
from onnxfold.passes.deferral.row_scale import Rows, RowScale
from onnxfold.passes.lower.spelled import reduced

_AXES_ARE_INPUTS_SINCE = 13


def _number(site: NormSite, given: float, role: str) -> ir.Value:
    """Return a constant in the type that the norm is computed in."""
    array = np.array(given, site.compute_dtype.numpy())
    return weight_value(f"{site.output.name}.{role}", array)


def _epsilon(site: NormSite) -> ir.Value:
    """Return the norm's epsilon; that of an operator is an attribute, and so float32."""
    spelled = site.form is NormForm.DECOMPOSED
    return _number(site, site.epsilon if spelled else float(np.float32(site.epsilon)), "epsilon")


def as_type(x: ir.Value, dtype: ir.DataType | None) -> list[ir.Node]:
    """Return the Cast of a value to a type, none where it has it."""
    if dtype is None or x.dtype == dtype:
        return []
    node = ir.node("Cast", [x], {"to": dtype.value})
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), x.shape
    return [node]


def _mean_square(site: NormSite, x: ir.Value, opset: int) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes and constants of factor * mean(x^2) along the norm's axes, which stay.

    x without its mean for a LayerNorm.  The first node reads x in the type that the norm is
    computed in.
    """
    made: list[ir.Value] = []
    nodes = as_type(x, site.compute_dtype)
    exact = nodes[-1].outputs[0] if nodes else x
    if site.subtracts_mean:
        nodes.append(_over_axes("ReduceMean", exact, site, opset, made))
        nodes.append(ir.node("Sub", [exact, nodes[-1].outputs[0]]))
        exact = nodes[-1].outputs[0]
    nodes.append(ir.node("Mul", [exact, exact]))
    nodes.append(_over_axes("ReduceMean", nodes[-1].outputs[0], site, opset, made))
    if site.factor != 1.0:
        made.append(_number(site, site.factor, "factor"))
        nodes.append(ir.node("Mul", [nodes[-1].outputs[0], made[-1]]))
    return nodes, made


def quotient(
    site: NormSite, x: ir.Value, opset: int, inverse_square: ir.Value | None = None
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes and constants of x / sqrt(factor * mean(x^2) + e), e the norm's epsilon.

    Of u / sqrt(factor * mean(u^2) + e / s^2) where 1 / s^2, one number for each row, is given.
    The reciprocal stands first: a quotient, and a Mul behind it, would make ONNX Runtime's
    transformers optimizer raise TypeError.
    """
    nodes, made = _mean_square(site, x, opset)
    numerator = next(node for node in nodes if node.op_type == "Mul").inputs[0]
    mean, epsilon = nodes[-1].outputs[0], _epsilon(site)
    made.append(epsilon)
    if inverse_square is not None:
        cast = as_type(inverse_square, site.compute_dtype)
        nodes += cast
        known = cast[0].outputs[0] if cast else inverse_square
        nodes.append(ir.node("Mul", [known, epsilon]))
        epsilon = nodes[-1].outputs[0]
    nodes.append(ir.node("Add", [mean, epsilon]))
    nodes.append(ir.node("Sqrt", [nodes[-1].outputs[0]]))
    nodes.append(ir.node("Reciprocal", [nodes[-1].outputs[0]]))
    nodes.append(ir.node("Mul", [nodes[-1].outputs[0], numerator]))
    for node in nodes:
        node.outputs[0].type = ir.TensorType(site.compute_dtype)
    return nodes, made


def _over_axes(
    op_type: str, x: ir.Value, site: NormSite, opset: int, made: list[ir.Value]
) -> ir.Node:
    """Return a reduction along the norm's axes, which stay with size 1; ``made``: its constants."""
    node, axes = reduced(op_type, x, site.fiber.axes, opset, str(site.output.name))
    made += axes
    return node


class RowNumbers:
    """1 / s^2 = factor * mean(x^2) + epsilon of one norm and what follows from it, each made once.

    ``rows`` are the axes of x along which s runs.  All of it is computed before the norm's last
    node, in the type that the norm is computed in.
    """

    def __init__(self, edit: Editor, site: NormSite, x: ir.Value, rows: Rows):
        self._edit, self._site, self._place = edit, site, site.last
        self._opset = opset = edit.info.opset
        self._made: dict[tuple[str, int, Rows], ir.Value] = {}
        self._rows = rows
        nodes, constants = _mean_square(site, x, opset)
        constants.append(_epsilon(site))
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
            node.outputs[0].type = ir.TensorType(self._site.compute_dtype)
        lowered = Lowered(tuple(nodes), (), tuple(constants))
        return self._edit.compute_before(self._place, lowered)
