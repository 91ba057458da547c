"""How far the scale of a norm can be deferred, and where it must end."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.operands import operand
from onnxfold.graph.traversal import NodeQueue
from onnxfold.norms import NORMS, NormSite
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.row_scale import RowScale, passed_on, rows_of
from onnxfold.passes.deferral.tables import Table, tables_of
from onnxfold.targets.costs import elements

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
