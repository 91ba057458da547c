"""Walk from y = g * x + s to every linear reader, through carriers; any other reader refuses."""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.operators.families.absorb import AbsorbingLayer
from onnxfold.operators.families.reactions import Absorbs, Passes, react
from onnxfold.operators.families.transfer import refuse
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class ReachedLayer:
    """A linear reader and how it absorbs the affine part."""

    reader: Reader
    absorbs: AbsorbingLayer


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
        self._at: dict[ir.Value, Channels] = {}
        self.found: list[ReachedLayer] = []
        self.shift_refusal: Refusal | None = None

    def run(self, value: ir.Value, channels: Channels) -> Refusal | None:
        """Visit nodes in topological order, so that every predecessor of a node comes first."""
        refusal = self._enter(value, channels)
        for node in self._queue:
            refusal = refusal or self._visit(node)
            if refusal is not None:
                break
        return refusal

    def _enter(self, value: ir.Value, channels: Channels) -> Refusal | None:
        """Record that a value carries the diagonal, and queue its readers."""
        if self._view.is_output(value):
            sentence = f"'{value.name}' is an output of its graph"
            return Refusal(RefusalCode.GRAPH_OUTPUT, sentence, (value.name or "",))
        self._at[value] = channels
        for reader in self._view.readers(value):
            if reader.node.graph is not self._home:
                return refuse(RefusalCode.BODY_BORDER, reader.node, "reads it from inside a body")
            self._queue.add(reader.node)
        return None

    def _visit(self, node: ir.Node) -> Refusal | None:
        met = {i: self._at[v] for i, v in enumerate(node.inputs) if v is not None and v in self._at}
        passes: Passes | None = None
        for index, channels in met.items():
            reaction = react(self._view, node, index, channels)
            if isinstance(reaction, Refusal):
                return reaction
            if isinstance(reaction, Absorbs):
                if len(met) > 1:
                    return refuse(RefusalCode.EXACT_READER, node, "reads it twice")
                for layer in reaction.layers:
                    self.found.append(ReachedLayer(Reader(node, index), layer))
                    self.shift_refusal = self.shift_refusal or layer.shift_refusal
            elif isinstance(reaction, Passes):
                if set(reaction.jointly) != set(met) or (
                    passes is not None and passes.outputs != reaction.outputs
                ):
                    return refuse(
                        RefusalCode.EXACT_READER, node, "joins it with values of another scale"
                    )
                passes = reaction
        return self._go_on(node, passes) if passes is not None else None

    def _go_on(self, node: ir.Node, passes: Passes) -> Refusal | None:
        self.shift_refusal = self.shift_refusal or passes.shift_refusal
        for position, channels in passes.outputs:
            refusal = self._enter(node.outputs[position], channels)
            if refusal is not None:
                return refusal
        return None
