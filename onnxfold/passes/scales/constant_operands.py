"""The constants that an operator reads element by element, which can absorb a scale.

A norm before a scale absorbs it in its gamma and beta: c (g x + b) = (c g) x + c b. A product by a
constant absorbs it in its factor, and a sum in its constant.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import SCALAR, Channels
from onnxfold.graph.operands import is_read_once, known_producer, operand, producer_of
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.operators.table import row_of

_GAMMA, _BETA = 1, 2


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


@dataclass(frozen=True, slots=True)
class NormConstants:
    """Gamma of a norm that is one operator, beta if there is one, and where one may be added."""

    gamma: EditPlace
    beta: EditPlace | None
    new_beta: Reader | None


def norm_constants(view: ModelInfo, site: NormSite, channels: Channels) -> NormConstants | None:
    """Return the places of gamma and beta, or None if one is not a separate constant.

    A gamma per group cannot absorb a scale per channel.
    """
    node = site.last
    gamma = _part_of(view, site, channels, _GAMMA)
    if gamma is None:
        return None
    if operand(node, _BETA) is not None:
        beta = _part_of(view, site, channels, _BETA)
        return None if beta is None else NormConstants(gamma, beta, None)
    one_axis = view.rank(gamma.value) == 1
    takes_beta = one_axis and not node.domain and node.op_type == "LayerNormalization"
    return NormConstants(gamma, None, Reader(node, _BETA) if takes_beta else None)


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
