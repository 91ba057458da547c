"""The constants that an operator reads element by element: what takes a scale there.

A norm that stays before a scale has its gamma and beta for it: c (g x + b) = (c g) x + c b.  So has
a product by a constant its factor, and a sum its constant.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.array_types import Array
from onnxfold.graph.channels import SCALAR, Channels
from onnxfold.graph.operands import known_producer
from onnxfold.norms import NormSite
from onnxfold.norms.algebra.canonical import uniform
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.affine.affine_walk import EditPlace, root_of


def bias_root(
    view: ModelInfo, reader: Reader, channels: Channels, output: ir.Value
) -> EditPlace | None:
    """Return the constant that is an operand itself, with the channels that it has of a result."""
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
    """Return the place of the constant factor of a product, if any.

    Ones are none: they stand where a norm has no gamma.
    """
    node = known_producer(value)
    for index in facets.factors(row_of(node)):
        tensor = view.tensor(node.inputs[index])
        if tensor is None or not tensor.dtype.is_floating_point() or tensor.size == 1:
            continue
        root = _operand_root(view, Reader(node, index), channels, value)
        if root is not None and uniform(view, root.value) != 1.0:
            return [root]
    return []


def gamma_and_beta(view: ModelInfo, site: NormSite, channels: Channels) -> list[EditPlace]:
    """Return the places of gamma and beta, none where one is no constant of its own.

    A gamma of ones takes nothing, and one per group no scale per channel.
    """
    return [] if site.gamma is None else _places(view, site, channels, (site.gamma, site.beta))


def beta_of(view: ModelInfo, site: NormSite, channels: Channels) -> list[EditPlace]:
    """Return the place of beta, none where it is no constant of its own."""
    return _places(view, site, channels, (site.beta,))


def _places(
    view: ModelInfo, site: NormSite, channels: Channels, parts: tuple[ir.Value | Array | None, ...]
) -> list[EditPlace]:
    if channels.digits and site.affine_axis is not None:
        return []
    inputs = list(site.last.inputs)
    found: list[EditPlace] = []
    for part in (part for part in parts if part is not None):
        if not isinstance(part, ir.Value) or inputs.count(part) != 1:
            return []
        root = _operand_root(view, Reader(site.last, inputs.index(part)), channels, site.output)
        if root is None:
            return []
        found.append(root)
    return found


def _operand_root(
    view: ModelInfo, reader: Reader, channels: Channels, output: ir.Value
) -> EditPlace | None:
    """Return the constant behind an operand that broadcasts; for one number, through layouts."""
    if channels.digits:
        return bias_root(view, reader, channels, output)
    root = root_of(view, reader, SCALAR, SCALAR)
    return root if isinstance(root, EditPlace) else None
