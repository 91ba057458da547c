"""gammas of queries and keys in the tables of RoPE: factors per channel, moved with the channels.

With x g for x, x cos + rotate(x) sin becomes x (g cos) + rotate(x) (rotate|g| sin): moving channels
moves their g as well, and a sign stays with x. The tables are small if heads share them. A norm
operator multiplies by gamma for free; a norm that cancels a scale is spelled out, and its gamma is
a separate product.

Source: N. Graef, M. Clapp, A. Wasielewski, "Flash normalization" (arXiv:2407.09577), section 4.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import Float64
from onnxfold.graph.edit import Editor, set_input
from onnxfold.graph.operands import known_operand
from onnxfold.graph.traversal import NodeQueue
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.new_nodes import NewNodes
from onnxfold.operators.row import Elements
from onnxfold.operators.table import row_of
from onnxfold.passes.constant_edits import rounded_once, unrounded_numbers
from onnxfold.targets.costs import elements

Rows = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class GammaTables:
    """``held``: the values that lose gamma, and gamma along their non-row axes.

    ``factors``: inputs of products, and the gammas that they absorb. ``width``: the number of their
    elements multiplied per row.
    """

    held: dict[ir.Value, Float64]
    factors: list[tuple[ir.Node, int, Float64]] = field(default_factory=list)
    widths: dict[tuple[ir.Value, bytes], int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The elements of factors that are multiplied per row."""
        return sum(self.widths.values())


def gamma_tables(
    info: ModelInfo, site: NormSite, rows: Rows, *, cheaper: bool = True
) -> GammaTables | None:
    """Return where a norm's gamma can go instead of its product, or None.

    ``rows`` are the rows of its result, axis by axis. ``cheaper``: only if that saves something.
    """
    gamma = _gamma(info, site, rows)
    if gamma is None:
        return None
    found = GammaTables({site.output: gamma})
    queue = info.queue()
    if not _push(info, site.output, site, queue):
        return None
    for node in queue:
        if _takes(info, node, found):
            continue
        outputs = _moved(info, node, found.held)
        if outputs is None:
            return None
        found.held |= outputs
        if not all(_push(info, output, site, queue) for output in outputs):
            return None
    worth = found.width < gamma.size or not cheaper
    return found if found.factors and worth else None


def scale_factors(edit: Editor, gammas: GammaTables) -> None:
    """Multiply tables by a gamma removed from the values that they are multiplied with."""
    scaled: dict[tuple[ir.Value, bytes], ir.Value] = {}
    for known, index, gamma in gammas.factors:
        node = edit.node(known)
        factor = known_operand(node, index)
        if factor.dtype is None:
            raise InvariantError(f"'{node.name}' is not a product")
        key = factor, gamma.tobytes()
        if key not in scaled:
            name, used = f"{factor.name}.gamma", gamma.squeeze() if gamma.size == 1 else gamma
            new = NewNodes(edit.info.opset)
            numbers = rounded_once(used, factor.dtype, name)
            result = new.op("Mul", factor, edit.new_constant(node.outputs[0], numbers, name))
            result.name, result.type = f"{name}.scaled", factor.type
            scaled[key] = edit.compute_before(node, new)
        set_input(node, index, scaled[key])


def _gamma(info: ModelInfo, site: NormSite, rows: Rows) -> Float64 | None:
    """Return gamma in the axes of the result, of size 1 along rows."""
    gamma = site.gamma
    part = unrounded_numbers(info, gamma) if isinstance(gamma, ir.Value) else gamma
    shape = info.shape(site.output)
    if part is None or shape is None or site.beta is not None:
        return None
    inner = [1 if row else dim for dim, row in zip(shape, rows, strict=True)]
    if part.ndim > len(inner) or not all(isinstance(dim, int) for dim in inner):
        return None
    sizes = tuple(dim for dim in inner if isinstance(dim, int))
    aligned = (1,) * (len(sizes) - part.ndim) + part.shape
    if any(size not in (1, dim) for size, dim in zip(aligned, sizes, strict=True)):
        return None
    return np.broadcast_to(np.asarray(part, np.float64).reshape(aligned), sizes)


def _push(info: ModelInfo, value: ir.Value, site: NormSite, queue: NodeQueue) -> bool:
    """Queue the readers of a value; return whether all of them can be followed."""
    if info.is_output(value):
        return False
    for use in value.uses():
        if facets.reads_elements(row_of(use.node)):
            if use.node.graph is not site.last.graph:
                return False
            queue.add(use.node)
    return True


def _takes(info: ModelInfo, node: ir.Node, found: GammaTables) -> bool:
    """Whether a node multiplies by a factor that can absorb gamma without growing."""
    inside = [index for index in facets.factors(row_of(node)) if node.inputs[index] in found.held]
    value = node.inputs[inside[0]] if len(inside) == 1 else None
    if value is None:
        return False
    index, gamma = 1 - inside[0], _shared(found.held[value])
    factor = node.inputs[index]
    shape = None if factor is None else info.shape(factor)
    if factor is None or shape is None or not _covers(shape, gamma):
        return False
    axes = zip(shape[::-1], found.held[value].shape[::-1], strict=False)
    inner = tuple(dim for dim, size in axes if size > 1)
    found.factors.append((node, index, gamma))
    found.widths[factor, gamma.tobytes()] = elements(inner)
    return True


def _shared(gamma: Float64) -> Float64:
    """Return a gamma with size 1 along every axis on which it is constant."""
    for axis in range(gamma.ndim):
        first = gamma.take([0], axis)
        gamma = first if np.all(gamma == first) else gamma
    return gamma


def _covers(shape: tuple[object, ...], gamma: Float64) -> bool:
    """Whether a tensor has every axis along which gamma varies."""
    pairs = zip(gamma.shape[::-1], (*shape[::-1], *(1 for _ in gamma.shape)), strict=False)
    return all(size in (1, dim) for size, dim in pairs)


def _moved(
    info: ModelInfo, node: ir.Node, held: Mapping[ir.Value, Float64]
) -> dict[ir.Value, Float64] | None:
    """Return the gammas of results that a node computes by moving or negating channels."""
    row, values = row_of(node), [value for value in node.inputs if value is not None]
    data = [node.inputs[index] for index in facets.data_inputs(row, len(node.inputs))]
    negated = row.elements <= Elements.LINEAR and len(values) == 1 and facets.positionwise(row)
    if not all(value in held for value in data) or _casts(node):
        return None
    if negated:
        return {node.outputs[0]: held[values[0]]}
    if not facets.moves_numbers(row):
        return None
    given = {value: held[value] if value in held else info.array(value) for value in values}
    if any(array is None for array in given.values()):
        return None
    operands = [None if value is None else given[value] for value in node.inputs]
    computed = info.wide_results(node, operands)
    if computed is None:  # sizes that only whole tensors have
        return None
    wide = (np.asarray(array, np.float64) for array in computed)
    found = dict(zip(node.outputs, wide, strict=True))
    return found if all(_fits(info, output, gamma) for output, gamma in found.items()) else None


def _casts(node: ir.Node) -> bool:
    """Whether a result has another type than the first input."""
    first = node.inputs[0]
    return any(first is None or output.dtype != first.dtype for output in node.outputs)


def _fits(info: ModelInfo, value: ir.Value, gamma: Float64) -> bool:
    shape = info.shape(value)
    return shape is not None and len(shape) == gamma.ndim and _covers(shape, gamma)
