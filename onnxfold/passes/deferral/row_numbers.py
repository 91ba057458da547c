"""Numbers computed once per row of a norm's input: 1 / s^2, and powers of it in any layout."""

import numpy as np
import onnx_ir as ir

from onnxfold.graph.edit import Editor
from onnxfold.norms.site import NormForm, NormSite
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.passes.deferral.row_scale import Rows, RowScale


def _number(new: NewNodes, site: NormSite, given: float, role: str) -> ir.Value:
    """Return a constant in the type in which the norm is computed."""
    array = np.array(given, site.compute_dtype.numpy())
    return new.weight(f"{site.output.name}.{role}", array)


def _epsilon(new: NewNodes, site: NormSite) -> ir.Value:
    """Return the norm's epsilon; an operator's is a float32 attribute."""
    spelled = site.form is NormForm.DECOMPOSED
    given = site.epsilon if spelled else float(np.float32(site.epsilon))
    return _number(new, site, given, "epsilon")


def _mean(new: NewNodes, site: NormSite, x: ir.Value) -> ir.Value:
    """Return the mean along the norm's axes, which stay with size 1."""
    name = f"{site.output.name}.axes"
    return new.along("ReduceMean", x, site.fiber.axes, name, keepdims=1)


def _mean_square(new: NewNodes, site: NormSite, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return x in the type in which the norm is computed, and factor * mean(x^2).

    For a LayerNorm both are of x without its mean.
    """
    exact = new.cast(x, site.compute_dtype)
    if site.subtracts_mean:
        exact = new.op("Sub", exact, _mean(new, site, exact))
    mean = _mean(new, site, new.op("Mul", exact, exact))
    if site.factor != 1.0:
        mean = new.op("Mul", mean, _number(new, site, site.factor, "factor"))
    return exact, mean


def quotient(
    new: NewNodes, site: NormSite, x: ir.Value, inverse_square: ir.Value | None = None
) -> ir.Value:
    """Return x / sqrt(factor * mean(x^2) + e), e the norm's epsilon.

    If 1 / s^2, one number per row, is given, it returns u / sqrt(factor * mean(u^2) + e / s^2). The
    reciprocal comes first, because a quotient with a Mul after it would make ONNX Runtime's
    transformers optimizer raise TypeError.
    """
    numerator, mean = _mean_square(new, site, x)
    epsilon = _epsilon(new, site)
    if inverse_square is not None:
        epsilon = new.op("Mul", new.cast(inverse_square, site.compute_dtype), epsilon)
    root = new.op("Sqrt", new.op("Add", mean, epsilon))
    result = new.op("Mul", new.op("Reciprocal", root), numerator)
    for node in new.nodes:
        node.outputs[0].type = ir.TensorType(site.compute_dtype)
    return result


class RowNumbers:
    """Values derived from 1 / s^2 = factor * mean(x^2) + epsilon of one norm, each made once.

    ``rows`` are the axes of x along which s runs. All of it is computed before the norm's last
    node, in the norm's compute type.
    """

    def __init__(self, edit: Editor, site: NormSite, x: ir.Value, rows: Rows):
        self._edit, self._site, self._place = edit, site, site.last
        self._made: dict[tuple[str, int, Rows], ir.Value] = {}
        self._rows = rows
        new = self._new()
        _, mean = _mean_square(new, site, x)
        new.op("Add", mean, _epsilon(new, site))
        self._inverse_square = self._insert(new, "inverse_square")

    def scale(self, wanted: RowScale) -> ir.Value:
        """Return s^degree in the layout of the value that it multiplies."""
        key = ("scale", wanted.degree, ())
        if key not in self._made:
            root = self._power(wanted.degree if wanted.degree % 2 else wanted.degree // 2)
            if wanted.degree % 2:
                root = self._op("inverse_scale", "Sqrt", root)
            self._made[key] = self._op("scale", "Reciprocal", root)
        return self._laid_out(self._made[key], "scale", wanted)

    def inverse_square(self, wanted: RowScale) -> ir.Value:
        """Return 1 / s^2degree in the layout of the value that it belongs to."""
        return self._laid_out(self._power(wanted.degree), "inverse_square", wanted)

    def _power(self, exponent: int) -> ir.Value:
        """Return (1 / s^2)^exponent."""
        value = self._inverse_square
        for _ in range(exponent - 1):
            value = self._op("inverse_power", "Mul", value, self._inverse_square)
        return value

    def _laid_out(self, value: ir.Value, role: str, wanted: RowScale) -> ir.Value:
        """Return numbers of the rows as a tensor that broadcasts to a value with other axes."""
        key = (role, wanted.degree, wanted.rows)
        if wanted.rows != self._rows and key not in self._made:
            self._made[key] = self._moved(value, role, wanted.rows)
        return self._made.get(key, value)

    def _moved(self, value: ir.Value, role: str, rows: Rows) -> ir.Value:
        new, name = self._new(), self._site.output.name
        if any(len(merged) > 1 for merged in rows):  # all of them
            sizes = [-1 if merged else 1 for merged in rows]
            new.op("Reshape", value, new.integers(f"{name}.sizes", sizes))
            return self._insert(new, role)
        kept = [row for merged in rows for row in merged]
        gone = [axis for axis in range(len(self._rows)) if axis not in kept]
        if gone:
            new.along("Squeeze", value, gone, f"{name}.axes")
            value = self._insert(new, "rows")
        if kept != sorted(kept):
            order = [sorted(kept).index(row) for row in kept]
            value = self._op(role, "Transpose", value, perm=order)
        repeated = [axis for axis, merged in enumerate(rows) if not merged]
        if not repeated:
            return value
        new = self._new()
        new.along("Unsqueeze", value, repeated, f"{name}.axes")
        return self._insert(new, "rows")

    def _op(self, role: str, op_type: str, *inputs: ir.Value, **attributes: list[int]) -> ir.Value:
        new = self._new()
        new.op(op_type, *inputs, **attributes)
        return self._insert(new, role)

    def _new(self) -> NewNodes:
        return NewNodes(self._edit.info.opset)

    def _insert(self, new: NewNodes, role: str) -> ir.Value:
        """Insert nodes before the norm's last one; return the last result."""
        for node in new.nodes:
            node.outputs[0].name = f"{self._site.output.name}.{role}"
            node.outputs[0].type = ir.TensorType(self._site.compute_dtype)
        return self._edit.compute_before(self._place, new)
