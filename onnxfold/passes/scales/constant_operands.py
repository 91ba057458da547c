"""The constants that an operator reads element by element, which can absorb a scale.

A norm before a scale absorbs it in its gamma and beta: c (g x + b) = (c g) x + c b. A product by a
constant absorbs it in its factor, and a sum in its constant.

One number through operators: f(c x) = c f(x), even if x has several readers that meet again.

A rotary embedding is x * cos + turned(x) * sin, with turned(x) made of Slices of x, Neg and Concat:
every path from x to the sum carries a factor once.
"""

from collections.abc import Collection

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import SCALAR, Channels
from onnxfold.graph.operands import is_read_once, known_producer, operand, producer_of
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.cut_parts import element_readers
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.operators.row import Elements
from onnxfold.operators.table import row_of

_MOST_NODES = 64  # one rotary embedding has about ten
_GAMMA, _BETA = 1, 2


def carries_factor(view: ModelInfo, node: ir.Node, scaled: Collection[int]) -> bool:
    """Whether scaling the inputs ``scaled`` by c, and no others, scales each output by c.

    f(c x) = c f(x) for every number c, in the element type of x.
    """
    row, inputs = row_of(node), set(scaled)
    if elements_of(view, node)[0] > Elements.LINEAR or not _gives_alike(node):
        return False
    data = facets.data_inputs(row, len(node.inputs))
    if not row.alone:
        return inputs == set(data)
    bias = {i for i, value in enumerate(node.inputs) if i == row.bias and value is not None}
    return bias <= inputs and len(inputs - bias) == 1 and inputs - bias <= set(data)


def _gives_alike(node: ir.Node) -> bool:
    """Whether all outputs that are read consist of the input's numbers."""
    rest = node.outputs[1:]
    unread = not any(output.uses() or output.is_graph_output() for output in rest)
    return unread or facets.scales_every_output(row_of(node))


def common_source(view: ModelInfo, value: ir.Value) -> ir.Value | None:
    """Return the nearest x, over several paths, with value = f(x) and f(c x) = c f(x), or None.

    Only ``value`` then depends on x, in the same graph.
    """
    seen: dict[ir.Value, None] = {value: None}
    waiting = [value]
    while waiting and len(seen) <= _MOST_NODES:
        current = waiting.pop(0)
        ways = sum(len(node.outputs) for node in element_readers(current))
        if current is not value and ways > 1 and _all_meet(view, current, value):
            return current
        node = current.producer()
        if node is None or view.array(current) is not None:
            continue
        for index in _activations(view, node):
            operand = node.inputs[index]
            if operand is not None and operand not in seen:
                seen[operand] = None
                waiting.append(operand)
    return None


def _activations(view: ModelInfo, node: ir.Node) -> tuple[int, ...]:
    """Return the inputs from which a factor may have come."""
    elements, _ = elements_of(view, node)
    every = facets.data_inputs(row_of(node), len(node.inputs))
    return every if elements <= Elements.LINEAR else ()


def _all_meet(view: ModelInfo, start: ir.Value, end: ir.Value) -> bool:
    """Whether scaling ``start`` by c scales ``end`` by c, and nothing else that is read."""
    scaled = {start}
    waiting = [start]
    touched: dict[ir.Node, None] = {}
    while waiting:
        value = waiting.pop()
        if value is end:
            continue
        if value.is_graph_output() or len(touched) > _MOST_NODES:
            return False
        for node in element_readers(value):
            touched[node] = None
            if node.graph is not end.graph:
                return False
            if _carries(view, node, scaled) and not scaled.issuperset(node.outputs):
                scaled |= set(node.outputs)
                waiting += node.outputs
    # A node may have been visited before all of its inputs were known to be scaled.
    return end in scaled and all(_carries(view, node, scaled) for node in touched)


def _carries(view: ModelInfo, node: ir.Node, scaled: Collection[ir.Value]) -> bool:
    return carries_factor(view, node, [i for i, value in enumerate(node.inputs) if value in scaled])


def bias_root(
    view: ModelInfo, reader: Reader, channels: Channels, output: ir.Value
) -> EditPlace | None:
    """Return the constant that is itself an operand, with its channels of the result."""
    operand, rank = reader.node.inputs[reader.index], view.rank(output)
    tensor = view.tensor(operand)
    if operand is None or tensor is None or rank is None:
        return None
    shape = tuple(tensor.shape.numpy())
    offset = rank - len(shape)
    sizes = {d.axis: d.inner * d.size * (d.outer or 0) for d in channels.digits}
    if any(axis < offset or shape[axis - offset] == 1 for axis in sizes):
        return None
    placed = channels.renamed({axis: axis - offset for axis in channels.axes})
    return EditPlace(operand, reader, placed, SCALAR)


def factor_of(view: ModelInfo, value: ir.Value, channels: Channels) -> list[EditPlace]:
    """Return the place of a product's or quotient's constant factor, or of its factors, if any."""
    node = known_producer(value)
    numerators = facets.numerators(row_of(node))
    for index in numerators:
        tensor = view.tensor(node.inputs[index])
        if tensor is None or not tensor.dtype.is_floating_point() or tensor.size == 1:
            continue
        root = _operand_root(view, Reader(node, index), channels, value)
        if root is not None:
            return [root]
    for index in numerators:
        factor = node.inputs[index]
        product = producer_of(factor)
        if factor is None or product is None or product.graph is not node.graph:
            continue
        if is_read_once(factor) and view.rank(factor) == view.rank(value):
            found = factor_of(view, factor, channels)
            if found:
                return found
    return []


def is_weight(view: ModelInfo, node: ir.Node, index: int) -> bool:
    """Whether an operand is a layout of a constant."""
    return isinstance(root_of(view, Reader(node, index), SCALAR, SCALAR), EditPlace)


def norm_constants(
    view: ModelInfo, site: NormSite, channels: Channels
) -> tuple[EditPlace, tuple[EditPlace, ...], Reader | None] | None:
    """Return gamma of a norm that is one operator, its beta if any, and where one may be added.

    None if one is not a separate constant. A gamma per group cannot absorb a scale per channel.
    """
    node = site.last
    gamma = _part_of(view, site, channels, _GAMMA)
    if gamma is None:
        return None
    if operand(node, _BETA) is not None:
        beta = _part_of(view, site, channels, _BETA)
        return None if beta is None else (gamma, (beta,), None)
    one_axis = view.rank(gamma.value) == 1
    takes_beta = one_axis and not node.domain and node.op_type == "LayerNormalization"
    return gamma, (), Reader(node, _BETA) if takes_beta else None


def _part_of(view: ModelInfo, site: NormSite, channels: Channels, index: int) -> EditPlace | None:
    part = operand(site.last, index)
    if part is None or list(site.last.inputs).count(part) != 1:
        return None
    if channels.digits and site.affine_axis is not None:
        return None
    return _operand_root(view, Reader(site.last, index), channels, site.output)


def _operand_root(
    view: ModelInfo, reader: Reader, channels: Channels, output: ir.Value
) -> EditPlace | None:
    """Return the constant upstream of a broadcast operand; for one number, also through layouts."""
    if channels.digits:
        return bias_root(view, reader, channels, output)
    root = root_of(view, reader, SCALAR, SCALAR)
    return root if isinstance(root, EditPlace) else None
