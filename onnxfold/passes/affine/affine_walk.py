"""Walk from y = g * x + s to every linear reader, through carriers; any other reader refuses.

A Concat along the channels gives a reader more of them, a Split or a Slice fewer: y is then a part
of what it reads, or what it reads is a part of y.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.operators.families.absorb import AbsorbingLayer
from onnxfold.operators.families.cut_parts import cut_of, joined_at
from onnxfold.operators.families.reactions import Passes, react
from onnxfold.operators.families.transfer import refuse, refuse_value
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class ReachedLayer:
    """A linear reader and how it absorbs the affine part.

    ``start``: where g begins in the channels that are read, before them if negative; None if they
    are those of g.
    """

    reader: Reader
    absorbs: AbsorbingLayer
    start: int | None = None


_Carried = tuple[Channels, int | None]
"""Channels of a value that carries g and s, and where the first of g is, None for all."""


def follow(
    view: ModelInfo, value: ir.Value, channels: Channels
) -> tuple[list[ReachedLayer], Refusal | None] | Refusal:
    """Return all linear readers, and why a shift does not reach all of them (None if it does).

    ``order`` numbers the nodes topologically.
    """
    walk = _Walk(view, value)
    refusal = walk.run(value, channels)
    return (walk.found, walk.shift_refusal) if refusal is None else refusal


class _Walk:
    def __init__(self, view: ModelInfo, start: ir.Value):
        self._view = view
        self._queue = view.queue()
        producer = start.producer()
        self._home = producer.graph if producer is not None else start.graph
        self._at: dict[ir.Value, _Carried] = {}
        self._size = 0
        self.found: list[ReachedLayer] = []
        self.shift_refusal: Refusal | None = None

    def run(self, value: ir.Value, channels: Channels) -> Refusal | None:
        """Visit nodes in topological order, so that every predecessor of a node comes first."""
        self._size = channels.size
        refusal = self._enter(value, (channels, None))
        for node in self._queue:
            refusal = refusal or self._visit(node)
            if refusal is not None:
                break
        return refusal

    def _enter(self, value: ir.Value, carried: _Carried) -> Refusal | None:
        """Record that a value carries the diagonal, and queue its readers."""
        if self._view.is_output(value):
            return refuse_value(RefusalCode.GRAPH_OUTPUT, value, "is an output of its graph")
        self._at[value] = carried
        for reader in self._view.readers(value):
            if reader.node.graph is not self._home:
                return refuse(RefusalCode.BODY_BORDER, reader.node, "reads it from inside a body")
            self._queue.add(reader.node)
        return None

    def _visit(self, node: ir.Node) -> Refusal | None:
        met = {i: self._at[v] for i, v in enumerate(node.inputs) if v is not None and v in self._at}
        parts = self._parts(node, met)
        if parts is not None:
            refusals = [self._enter(value, carried) for value, carried in parts]
            return next((refusal for refusal in refusals if refusal is not None), None)
        passes: Passes | None = None
        start, *others = {first for _, first in met.values()}
        if others:
            return refuse(RefusalCode.EXACT_READER, node, "joins it with values of another scale")
        for index, (channels, _) in met.items():
            reaction = react(self._view, node, index, channels)
            if isinstance(reaction, Refusal):
                return reaction
            if isinstance(reaction, tuple):
                if reaction and len(met) > 1:
                    return refuse(RefusalCode.EXACT_READER, node, "reads it twice")
                for layer in reaction:
                    self.found.append(ReachedLayer(Reader(node, index), layer, start))
                    self.shift_refusal = self.shift_refusal or layer.shift_refusal
            else:
                if set(reaction.jointly) != set(met) or (
                    passes is not None and passes.outputs != reaction.outputs
                ):
                    return refuse(
                        RefusalCode.EXACT_READER, node, "joins it with values of another scale"
                    )
                passes = reaction
        return self._go_on(node, passes, start) if passes is not None else None

    def _parts(
        self, node: ir.Node, met: Mapping[int, _Carried]
    ) -> list[tuple[ir.Value, _Carried]] | None:
        """Return what carries more or fewer channels, or None if the node changes none of them."""
        (index, (carried, first)), *others = met.items()
        axes = carried.axes
        if others or len(axes) != 1 or not all(digit.whole for digit in carried.digits):
            return None
        before = joined_at(self._view, node, index, axes[0])
        start = first or 0
        if before is not None:
            channels = Channels.along([(axes[0], before[1])])
            return [(node.outputs[0], (channels, start + before[0]))]
        cuts = [(value, cut_of(self._view, value)) for value in node.outputs]
        made: list[tuple[ir.Value, _Carried]] = []
        for value, cut in cuts:
            ranks = {self._view.rank(value), self._view.rank(node.inputs[0])}
            if cut is None or cut.axis != axes[0] or cut.length == cut.total or len(ranks) > 1:
                return None
            first, read = start - cut.start, value.uses() or value.is_graph_output()
            if read and -self._size < first < cut.length:
                made.append((value, (Channels.along([(cut.axis, cut.length)]), first)))
        return made

    def _go_on(self, node: ir.Node, passes: Passes, start: int | None) -> Refusal | None:
        self.shift_refusal = self.shift_refusal or passes.shift_refusal
        for position, channels in passes.outputs:
            refusal = self._enter(node.outputs[position], (channels, start))
            if refusal is not None:
                return refusal
        return None
