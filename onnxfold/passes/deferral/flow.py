"""How far the scale of a norm can be deferred, where it must end, and tables that absorb it.

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
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor, set_input
from onnxfold.graph.operands import known_operand, operand
from onnxfold.graph.traversal import NodeQueue
from onnxfold.norms import NORMS, NormSite
from onnxfold.operators import facets
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.plan import ScaledTable
from onnxfold.passes.deferral.row_scale import RowNumbers, RowScale, passed_on, rows_of
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


_HIGHEST_DEGREE = 2  # of a GLU; s^4 of long rows exceeds float32
_MOST_STEPS = 4  # from a stored weight to a product: DequantizeLinear, Cast, Transpose
_LEAST, _LEAST_DOUBLE = 2.0**-126, 2.0**-1022  # normal numbers


@dataclass(slots=True)
class Flow:
    """Values that can be computed without s, in order, and the nodes that pass s on to them.

    ``widths``: their elements for one row. ``ended``: the values that some reader needs unchanged.
    ``biased``: those to which a layer adds a bias, so that s is multiplied before it. ``tables``:
    where s may be multiplied to other inputs of a node. ``cancelled``: norms whose input has a
    scale, which they cancel.
    """

    scales: dict[ir.Value, RowScale] = field(default_factory=dict)
    widths: dict[ir.Value, int] = field(default_factory=dict)
    handed: dict[ir.Node, tuple[ir.Value, ...]] = field(default_factory=dict)
    ended: set[ir.Value] = field(default_factory=set)
    biased: set[ir.Value] = field(default_factory=set)
    tables: dict[ir.Node, Table] = field(default_factory=dict)
    cancelled: dict[NormSite, RowScale] = field(default_factory=dict)

    def hands_on(self, value: ir.Value) -> bool:
        """Whether readers of a value may compute without s as well."""
        return value in self.scales and value not in self.biased


def sites_of(info: ModelInfo) -> tuple[NormSite, ...]:
    """Return the norms of a model, with float32 statistics instead of float16.

    A deferred norm is computed again, and 1 / s^2 of a row may exceed float16.
    """
    return tuple(
        replace(site, compute_dtype=ir.DataType.FLOAT)
        if site.compute_dtype is ir.DataType.FLOAT16
        else site
        for site in NORMS.of(info)
    )


def flow_of(
    info: ModelInfo,
    site: NormSite,
    behind: Mapping[ir.Value, NormSite],
) -> Flow:
    """Follow the scale of a norm downstream; ``behind`` are the norms that cancel one, by input."""
    rows = rows_of(site.fiber, len(info.shape(site.output) or ()))
    flow = Flow({site.output: RowScale(1, rows)}, {site.output: site.size})
    queue = info.queue()
    _visit(info, flow, site.output, site, behind, queue)
    for node in queue:
        for output in _hand_on(info, flow, node, site.output.dtype):
            _visit(info, flow, output, site, behind, queue)
    return flow


def _visit(
    info: ModelInfo,
    flow: Flow,
    value: ir.Value,
    site: NormSite,
    behind: Mapping[ir.Value, NormSite],
    queue: NodeQueue,
) -> None:
    """Queue the readers of a value, and record where it must be unchanged."""
    last = behind.get(value)
    scale = flow.scales[value]
    taken: tuple[ir.Node, ...] = ()
    alone = last is not None and not any(scale.rows[axis] for axis in last.fiber.axes)
    if last is not None and alone and keeps_epsilon(site, last, scale.degree):
        flow.cancelled[last] = scale
        taken = last.nodes
    if info.is_output(value):
        flow.ended.add(value)
    for use in value.uses():
        node = use.node
        if node in taken or not facets.reads_elements(row_of(node)):
            continue
        if node.graph is site.last.graph:
            queue.add(node)
        else:
            flow.ended.add(value)


def keeps_epsilon(site: NormSite, last: NormSite, degree: int) -> bool:
    """Whether e / s^2 is a normal number for a row of zeros, where 1 / s^2 is the epsilon of s."""
    least = _LEAST_DOUBLE if last.compute_dtype is ir.DataType.DOUBLE else _LEAST
    return site.epsilon**degree * last.epsilon >= least


def _hand_on(
    info: ModelInfo, flow: Flow, node: ir.Node, dtype: ir.DataType | None
) -> tuple[ir.Value, ...]:
    """Pass the scale of a node on to its outputs, which are returned, or end it at its inputs."""
    scaled = {
        index: flow.scales[value]
        for index, value in enumerate(node.inputs)
        if value is not None and flow.hands_on(value)
    }
    bias = _bias_behind(node)
    passed = None if _is_of_two(info, node) else passed_on(info, node, scaled, without=bias)
    if (
        passed is None
        or passed.degree > _HIGHEST_DEGREE
        or (dtype is ir.DataType.FLOAT16 and not _keeps_range(flow, node))
        or any(output.dtype != dtype for output in node.outputs)
    ):
        flow.ended |= {value for value in node.inputs if value in flow.scales}
        return ()
    flow.handed[node] = tuple(node.outputs)
    for output in node.outputs:
        flow.scales[output] = passed
        flow.widths[output] = _width(info, flow, node, output)
    half = dtype is ir.DataType.FLOAT16
    table = None if half else tables_of(info, node, scaled, passed)
    if table is not None and len(table.indices) * table.width < flow.widths[node.outputs[0]]:
        flow.tables[node] = table
    if bias is None:
        return tuple(node.outputs)
    flow.biased.update(node.outputs)
    flow.ended.update(node.outputs)
    return ()


def _keeps_range(flow: Flow, node: ir.Node) -> bool:
    """Whether a node's result is no larger than its operand, or than a first layer's result."""
    if row_of(node).layer is None:
        return facets.moves_numbers(row_of(node))
    before, *_ = [value for value in node.inputs if value in flow.scales]
    while before.producer() in flow.handed:
        maker = before.producer()
        if maker is None or row_of(maker).layer is not None:
            return False
        before = next(value for value in maker.inputs if value in flow.scales)
    return True


def _width(info: ModelInfo, flow: Flow, node: ir.Node, value: ir.Value) -> int:
    """Return the elements of a value for one row, or of an input if they are unknown."""
    shape, rows = info.shape(value), flow.scales[value].rows
    if shape is not None:
        inner = tuple(dim for dim, row in zip(shape, rows, strict=True) if not row)
        if all(isinstance(dim, int) for dim in inner):
            return elements(inner)
    return max(flow.widths[value] for value in node.inputs if value in flow.widths)


def _bias_behind(node: ir.Node) -> int | None:
    """Return the input that a layer adds to its product as an Add would, if it has one."""
    index = facets.bias_behind(row_of(node))
    if index is None or operand(node, index) is None:
        return None
    return index if node.attributes.get_float("beta", 1.0) == 1.0 else None


def _is_of_two(info: ModelInfo, node: ir.Node) -> bool:
    """Whether a product is of two activations: attention scores, which grow with the rows."""
    operands = [value for value in node.inputs[:2] if value is not None]
    return row_of(node).layer is not None and not any(_is_weight(info, v) for v in operands)


def _is_weight(info: ModelInfo, value: ir.Value) -> bool:
    """Whether a value is a constant, or computed from constants by a few operators."""
    for _ in range(_MOST_STEPS):
        if info.tensor(value) is not None:
            return True
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return False
        if any(info.tensor(other) is None for other in node.inputs[1:] if other is not None):
            return False
        value = node.inputs[0]
    return False
