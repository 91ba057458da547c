"""Factors that absorb a scale instead of their cofactors: tables that heads share.

A product x t becomes x (s t). A rotary embedding x cos + rotate(x) sin is linear in (cos, sin) too,
so s is multiplied to both: 2 h multiplications per row (h for RotaryEmbedding, whose tables have
each number once) for all heads, of queries and keys together.

Source: N. Graef, M. Clapp, A. Wasielewski, "Flash normalization" (arXiv:2407.09577), section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.deferral.row_scale import RowScale
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
