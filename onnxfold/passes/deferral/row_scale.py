"""One positive number per row through operators: f(s x) = s^k f(x), and the axes of the rows.

An RMSNorm is y = s x with s = 1 / sqrt(mean(x^2) + eps), one s for each row of x. If f is
positively homogeneous of degree k in its scaled inputs and keeps rows apart, s^k can be multiplied
after f. Degrees add in products, so a ReGLU or a bilinear GLU has degree 2.

Source: N. Graef, M. Clapp, A. Wasielewski, "Flash normalization" (arXiv:2407.09577), sections 1-3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.dims import Dim, extent
from onnxfold.operators import facets
from onnxfold.operators.families.maps import map_of
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of

Rows = tuple[tuple[int, ...], ...]


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
    if facets.positionwise(row):
        return _positionwise(info, node, scaled)
    if row.rotates is not None:
        (rows,) = scaled.values()
        return rows if rows and not rows[-1] else None
    rule = _RULES.get(row.family) if row.family is not None else None
    return None if rule is None else rule(info, node, scaled)


def _positionwise(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    rank = info.rank(node.outputs[0])
    if rank is None:
        return None
    aligned = {((),) * (rank - len(rows)) + rows for rows in scaled.values()}
    return aligned.pop() if len(aligned) == 1 else None


def _product(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    """A linear layer: no row of s runs along an index that it sums over."""
    known = map_of(info, node)
    if known is None or len(scaled) != 1:
        return None
    ((index, rows),) = scaled.items()
    of_label = {label: row for label, row in zip(known.operand(index), rows, strict=False) if row}
    if index >= len(known.factors) or not of_label.keys() <= set(known.output):
        return None
    return tuple(of_label.get(label, ()) for label in known.output)


def _transpose(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    del info
    rows = scaled[0]
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(rows)))))
    return tuple(rows[axis] for axis in order)


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


def _expand(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    return _positionwise(info, node, scaled) if set(scaled) == {0} else None


def _concat(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    del info
    rows = set(scaled.values())
    axis = node.attributes.get_int("axis", 0)
    return _unless_along(rows.pop(), (axis,)) if len(rows) == 1 else None


def _split(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    del info
    return _unless_along(scaled[0], (node.attributes.get_int("axis", 0),))


def _slice(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    rows = scaled[0]
    axes = info.axes(node, input_index=3)
    return None if axes is None else _unless_along(rows, axes or tuple(range(len(rows))))


def _gather(info: ModelInfo, node: ir.Node, scaled: Mapping[int, Rows]) -> Rows | None:
    rows, indices = scaled[0], info.rank(node.inputs[1])
    axis = node.attributes.get_int("axis", 0) % len(rows)
    if indices is None or rows[axis]:
        return None
    return rows[:axis] + ((),) * indices + rows[axis + 1 :]


def _unless_along(rows: Rows, axes: tuple[int, ...]) -> Rows | None:
    """Return the rows of an operator along some axes, unless it runs along one of the rows."""
    return None if any(rows[axis] for axis in axes) else rows


_RULES: Mapping[Family, Callable[[ModelInfo, ir.Node, Mapping[int, Rows]], Rows | None]] = {
    Family.CONCAT: _concat,
    Family.EXPAND: _expand,
    Family.GATHER: _gather,
    Family.GEMM: _product,
    Family.MATMUL: _product,
    Family.RESHAPE: _reshape,
    Family.SLICE: _slice,
    Family.SPLIT: _split,
    Family.TRANSPOSE: _transpose,
}
