"""Ranks that follow from the readers of a value, if the operator does not determine its result.

PyTorch writes ``squeeze(dim)`` of an unknown size as an If whose branches differ in rank by one. A
downstream Transpose, Gemm or convolution determines the branch, and so does a declared output
reached through linear layers and residual sums.
"""

from collections.abc import Iterator
from functools import cached_property

import onnx_ir as ir

from onnxfold.graph.dims import Shape
from onnxfold.graph.model_info import ModelInfo
from onnxfold.graph.operands import known_producer, producer_of
from onnxfold.graph.traversal import bodies
from onnxfold.operators import facets
from onnxfold.operators.row import Family, Layer
from onnxfold.operators.table import row_of
from onnxfold.shapes.body_shapes import either

_ANY = range(1 << 16)
_CONVOLUTIONS = (
    Layer.CONVOLUTION,
    Layer.DEFORMABLE_CONVOLUTION,
    Layer.TRANSPOSED_CONVOLUTION,
)
_KEEP_RANK = (Family.CUMULATIVE, Family.PAD, Family.SLICE, Family.SPLIT)
_LAYERS = (*_CONVOLUTIONS, Layer.MATMUL)
_MATRIX = 2


class DemandedRanks:
    """The ranks that values must have for everything downstream to run, from the last node on."""

    def __init__(self, view: ModelInfo):
        self._view = view

    def shapes(self, node: ir.Node) -> Iterator[tuple[ir.Value, Shape]]:
        """Yield results of unknown shape for which only one shape is possible, with that shape."""
        for value in node.outputs:
            if self._view.shape(value) is not None:
                continue
            ranks, branches = self._ranks.get(value, _ANY), self._branches(value)
            shape: Shape | None = (None,) * ranks[0] if len(ranks) == 1 else None
            if branches:
                shape = either([branch for branch in branches if len(branch) in ranks])
            if shape is not None:
                yield value, shape

    def _branches(self, value: ir.Value) -> list[Shape]:
        """Return the shapes that branches yield for a value, or nothing if one is unknown."""
        node = known_producer(value)
        results = (body.outputs[value.index() or 0] for _, _, body in bodies(node))
        shapes = [self._view.shape(result) for result in results if node.op_type == "If"]
        known = [shape for shape in shapes if shape is not None]
        return known if len(known) == len(shapes) else []

    @cached_property
    def _ranks(self) -> dict[ir.Value, range]:
        found: dict[ir.Value, range] = {}
        for graph in self._view.graphs:  # a reader within a body need not run
            for node in reversed(graph):
                if not self._view.is_dead(node):
                    self._look_at(node, found)
        return found

    def _look_at(self, node: ir.Node, found: dict[ir.Value, range]) -> None:
        for index, operand in enumerate(node.inputs):
            producer = producer_of(operand)
            if operand is not None and producer is not None and producer.graph is node.graph:
                known, asked = found.get(operand, _ANY), self._asked(node, index, found)
                least, most = max(known.start, asked.start), min(known.stop, asked.stop)
                found[operand] = range(least, most)

    def _asked(self, node: ir.Node, index: int, found: dict[ir.Value, range]) -> range:
        """Return the ranks that an operator accepts at an input."""
        row, result = row_of(node), self._of(node.outputs[0], found)
        if row.family is Family.GEMM:
            return range(_MATRIX, _MATRIX + 1) if index < _MATRIX else range(_MATRIX + 1)
        broadcast = facets.broadcasts(row)
        if broadcast is not None:
            return range(result.stop) if not broadcast or index < broadcast else _ANY
        if row.family is Family.CONCAT:
            return next((self._of(other, found) for other in self._known(node)), result)
        if index != 0:
            return _ANY
        if row.family is Family.TRANSPOSE:
            perm = node.attributes.get_ints("perm", ())
            return range(len(perm), len(perm) + 1) if perm else result
        if row.family is Family.GATHER:
            gathered = self._view.rank(node.inputs[1])
            return _ANY if gathered is None else _shifted(result, 1 - gathered)
        weight = self._view.rank(node.inputs[1]) if row.layer in _LAYERS else None
        if row.layer in _CONVOLUTIONS:
            return _ANY if weight is None else range(weight, weight + 1)
        keeps = weight == _MATRIX or row.family in _KEEP_RANK or facets.same_shape(row)
        return result if keeps else _ANY

    def _known(self, node: ir.Node) -> Iterator[ir.Value]:
        return (v for v in node.inputs if v is not None and self._view.rank(v) is not None)

    def _of(self, value: ir.Value, found: dict[ir.Value, range]) -> range:
        rank = self._view.rank(value)
        return found.get(value, _ANY) if rank is None else range(rank, rank + 1)


def _shifted(ranks: range, more: int) -> range:
    return range(max(0, ranks.start + more), ranks.stop + more)
