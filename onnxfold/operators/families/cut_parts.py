"""Parts of a value: the outputs of a Split, a Slice without steps, a Gather of one index.

Operators after one part of a joint projection (q, k and v at once) concern only the columns of that
part in the weight, if no other reader sees the elements of the part.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.operators import facets
from onnxfold.operators.families.parts import cut_axes, part_along, sliced_axes
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of


@dataclass(frozen=True, slots=True)
class AxisPart:
    """Elements ``start`` to ``start + length`` of ``total`` along ``axis`` of ``source``."""

    source: ir.Value
    axis: int
    start: int
    length: int
    total: int

    @property
    def index(self) -> tuple[slice, ...]:
        """What picks the elements from an array."""
        return (*(slice(None),) * self.axis, slice(self.start, self.start + self.length))

    def meets(self, other: "AxisPart") -> bool:
        """Whether some element is in both; always, for parts along different axes."""
        apart = self.start + self.length <= other.start or other.start + other.length <= self.start
        return self.axis != other.axis or not apart


def cut_of(view: ModelInfo, value: ir.Value) -> AxisPart | None:
    """Return which part of another value this is, or None."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.inputs else None
    rank = view.rank(source)
    if node is None or source is None or rank is None:
        return None
    family = row_of(node).family
    if family is Family.SPLIT:
        axis = node.attributes.get_int("axis", 0) % rank
        return _of_split(view, node, source, node.outputs.index(value), axis)
    if family is Family.GATHER:
        axis = node.attributes.get_int("axis", 0) % rank
        indices, total = view.integers(node.inputs[1]), view.dim(source, axis)
        one = indices is not None and len(indices) == 1 and view.rank(node.inputs[1]) == 0
        if not one or indices is None or not isinstance(total, int):
            return None
        return AxisPart(source, axis, indices[0] % total, 1, total)
    return _of_slice(view, node, source) if family is Family.SLICE else None


def _of_split(
    view: ModelInfo, node: ir.Node, source: ir.Value, position: int, axis: int
) -> AxisPart | None:
    sizes = [view.dim(output, axis) for output in node.outputs]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(known) != len(sizes):
        return None
    return AxisPart(source, axis, sum(known[:position]), known[position], sum(known))


def _of_slice(view: ModelInfo, node: ir.Node, source: ir.Value) -> AxisPart | None:
    """Return the part that a Slice with step 1 keeps, with every other axis whole."""
    cut = cut_axes(view, node)
    named = cut or sliced_axes(view, node)
    if cut is None or not named or len(cut) > 1:
        return None
    part = part_along(view, node, named[0])
    if part is None or part[0] == part[1]:
        return None
    start, end, total = part
    return AxisPart(source, named[0], start, end - start, total)


def joined_at(view: ModelInfo, node: ir.Node, index: int, axis: int) -> tuple[int, int] | None:
    """Return where an operand of a Concat along an axis begins, and the size of all, or None."""
    rank = view.rank(node.outputs[0]) if row_of(node).family is Family.CONCAT else None
    sizes = [view.dim(value, axis) for value in node.inputs]
    known = [size for size in sizes if isinstance(size, int)]
    if rank is None or node.attributes.get_int("axis", 1) % rank != axis or len(known) < len(sizes):
        return None
    return sum(known[:index]), sum(known)


def element_readers(value: ir.Value) -> list[ir.Node]:
    """Return the readers of elements, not of the shape alone, once for each reading."""
    return [use.node for use in value.uses() if facets.reads_elements(row_of(use.node))]


def only_part(view: ModelInfo, value: ir.Value, cut: AxisPart) -> bool:
    """Whether the elements of a part are read only in it: all other readers are disjoint parts."""
    if cut.source.is_graph_output():
        return False
    results = (output for node in element_readers(cut.source) for output in node.outputs)
    others = [cut_of(view, output) for output in results if output is not value]
    return all(other is not None and not other.meets(cut) for other in others)
