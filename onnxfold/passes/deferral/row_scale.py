"""One positive number per row: how it is computed, and how it moves through operators.

An RMSNorm is y = s x with s = 1 / sqrt(mean(x^2) + eps), one s for each row of x. If f is
positively homogeneous of degree k in its scaled inputs and keeps rows apart, s^k can be multiplied
after f. Degrees add in products, so a ReGLU or a bilinear GLU has degree 2.

Source: N. Graef, M. Clapp, A. Wasielewski, "Flash normalization" (arXiv:2407.09577), sections 1-3.

Powers of 1 / s^2 = mean(x^2) + eps in a graph: s itself, s^2, 1 / s^4, in any layout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.dims import Dim, extent
from onnxfold.graph.edit import Editor
from onnxfold.graph.traversal import NodeQueue
from onnxfold.norms.site import NormForm, NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.maps import Axes, IndexMap, map_of
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of

Rows = tuple[tuple[int, ...], ...]
_MAPPED = frozenset(
    {
        Family.CONCAT,
        Family.GATHER,
        Family.GEMM,
        Family.MATMUL,
        Family.SLICE,
        Family.SPLIT,
        Family.TRANSPOSE,
    }
)


@dataclass(frozen=True, slots=True)
class RowScale:
    """value = s^degree u: axis a of the value runs along the axes ``rows[a]`` of s, in order.

    None or one of them, or several if a Reshape has merged all rows into one axis.
    """

    degree: int
    rows: Rows


def rows_of(fiber: Fiber, rank: int) -> Rows:
    """Return the axes of a tensor with the channels of a norm along which its scale runs."""
    return tuple(() if axis in fiber.axes else (axis,) for axis in range(rank))


def passed_on(
    info: ModelInfo,
    node: ir.Node,
    scaled: Mapping[int, RowScale],
    *,
    without: int | None = None,
) -> RowScale | None:
    """Return the scale of each output if inputs have the scales ``scaled``, the others none.

    Returns None if an output is not a power of s times its value without s. ``without`` is an input
    that is removed before.
    """
    row = row_of(node)
    level, _ = elements_of(info, node)
    given = (index for index, value in enumerate(node.inputs) if value is not None)
    present = [index for index in given if index != without]
    degrees = {index: scale.degree for index, scale in scaled.items()}
    degree = facets.degree(row, level, degrees, present)
    if degree is None or not facets.gives_alike(row, _read_outputs(node)):
        return None
    rows = _rows(info, node, {index: scale.rows for index, scale in scaled.items()})
    return None if rows is None else RowScale(degree, rows)


def _read_outputs(node: ir.Node) -> list[int]:
    return [
        index
        for index, output in enumerate(node.outputs)
        if output.uses() or output.is_graph_output()
    ]


def _rows(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    """Return the rows after a node that keeps them apart, or None if it may mix them."""
    row = row_of(node)
    if facets.positionwise(row) or row.family is Family.EXPAND:
        return _positionwise(info, node, scaled)
    if row.rotates is not None:
        (rows,) = scaled.values()
        return rows if rows and not rows[-1] else None
    if row.family is Family.RESHAPE:
        return _reshape(info, node, scaled)
    return _by_map(info, node, scaled) if row.family in _MAPPED else None


def _positionwise(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    rank = info.rank(node.outputs[0])
    if rank is None:
        return None
    aligned = {((),) * (rank - len(rows)) + rows for rows in scaled.values()}
    return aligned.pop() if len(aligned) == 1 else None


def _by_map(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    """A row of s runs on along the same index, and along none that is summed over or worked on."""
    known = map_of(info, node)
    if not isinstance(known, IndexMap) or (row_of(node).alone and len(scaled) != 1):
        return None
    found = {_behind(known, known.operand(index), rows) for index, rows in scaled.items()}
    return found.pop() if len(found) == 1 else None


def _behind(known: IndexMap, axes: Axes, rows: Rows) -> Rows | None:
    of_label = {label: row for label, row in zip(axes, rows, strict=False) if row}
    kept = {label for label in known.output if label and not label[0].endswith("!")}
    if not of_label.keys() <= kept or any(rows[len(axes) :]):
        return None
    return tuple(of_label.get(label, ()) for label in known.output)


def _reshape(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    """Map the rows of a Reshape by the smallest groups of axes with equal products."""
    old, new = info.shape(node.inputs[0]), info.shape(node.outputs[0])
    if old is None or new is None:
        return None
    rows = scaled[0]
    sources = [axis for axis, dim in enumerate(old) if dim != 1]
    targets = [axis for axis, dim in enumerate(new) if dim != 1]
    found: list[tuple[int, ...]] = [()] * len(new)
    while any(rows[axis] for axis in sources):
        size = _first_group([old[a] for a in sources], [new[a] for a in targets])
        if size is None:
            return None
        (group, sources), (into, targets) = (
            (axes[:count], axes[count:])
            for axes, count in zip((sources, targets), size, strict=True)
        )
        merged = tuple(row for axis in group for row in rows[axis])
        if merged and (len(into) != 1 or not all(rows[axis] for axis in group)):
            return None
        if merged:
            found[into[0]] = merged
    several = any(len(merged) > 1 for merged in found)
    return None if several and sum(map(bool, found)) > 1 else tuple(found)


def _first_group(old: Sequence[Dim], new: Sequence[Dim]) -> tuple[int, int] | None:
    """Return how many of the first dimensions, at least, have equal products; None if none do.

    As the products of all are equal, so are the products before a common end.
    """
    sizes = [
        (first, second)
        for first in range(1, len(old) + 1)
        for second in range(1, len(new) + 1)
        if extent(old[:first]) is not None and extent(old[:first]) == extent(new[:second])
    ]
    ends = zip(reversed(old), reversed(new), strict=False)
    same = sum(1 for _ in takewhile(lambda dims: dims[0] == dims[1] is not None, ends))
    if same < len(old) and len(new) == same + 1:
        sizes.append((len(old) - same, 1))
    return min(sizes, key=sum, default=None)


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
