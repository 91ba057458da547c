"""Which value of a rewritten model stands for which of the original, and nodes for nodes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.norms import NormSite
from onnxfold.passes.centring.relations import Relations

__all__ = ["Copies"]

Pairs = tuple[tuple[ir.Value | None, ir.Value | None], ...]


class Copies:
    """Maps every value that only the rewritten model has to the original that it stands for.

    A centring stands for what it centres.  The rest is read off the graphs, readers first: an
    input of a node of both models that has changed its name stands for the value that the node
    read there before.  The norms of both models are keyed by result.
    """

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        relations: Relations,
        sites_before: Mapping[str, NormSite],
        sites_after: Mapping[str, NormSite],
    ):
        self._before, self._after = before, after
        self._relations = relations
        self._sites_before, self._sites_after = sites_before, sites_after
        self._old = before.by_ref()
        self.stands_for: dict[ir.Value, ir.Value] = {}
        for node in self._after.nodes():
            source = node.inputs[0] if node.inputs else None
            if source is None or self._relations.centring_fiber(node) is None:
                continue
            original = self.original(source)
            if original is not None:
                self._stand_for(node.outputs[0], original)
        for graph in self._after.graphs:
            for node in reversed(graph):
                self._find_copies_at(node)

    def _find_copies_at(self, node: ir.Node) -> None:
        for output in node.outputs:
            ref = self._after.ref(output) if output.name else ""
            site, twin = self._sites_after.get(ref), self._sites_before.get(ref)
            if site is not None and twin is not None:
                self._stand_for(site.input, twin.input)
        twin_node = self.twin(node)
        for new, old in self.paired_inputs(node, twin_node) if twin_node is not None else ():
            # A norm's parameter may have changed its shape, which its own check compares.
            if new is not None and old is not None and self._same_rank(new, old):
                self._stand_for(new, old)

    def _same_rank(self, new: ir.Value, old: ir.Value) -> bool:
        return self._after.rank(new) == self._before.rank(old)

    def paired_inputs(self, node: ir.Node, twin: ir.Node) -> Pairs:
        """Pair the inputs of two nodes; a sum of two may have its terms exchanged."""
        if len(node.inputs) != len(twin.inputs):
            return ()
        straight = tuple(zip(node.inputs, twin.inputs, strict=True))
        if node.op_type != "Add" or node.domain:
            return straight
        crossed = tuple(zip(node.inputs, twin.inputs[::-1], strict=True))
        return max((straight, crossed), key=self._agreements)

    def _agreements(self, pairs: Pairs) -> int:
        return sum(
            new is not None and old is not None and self.original(new) is old for new, old in pairs
        )

    def _stand_for(self, new: ir.Value, old: ir.Value) -> None:
        if self._after.ref(new) not in self._old:
            self.stands_for.setdefault(new, old)

    def twin(self, node: ir.Node) -> ir.Node | None:
        """Return the node of the original that computes the same value with the same operator."""
        if not node.outputs:
            return None
        old = self._old.get(self._after.ref(node.outputs[0]))
        if old is None:
            old = self.stands_for.get(node.outputs[0])
            source = node.inputs[0] if node.inputs else None
            if source is not None and self.original(source) is old:
                return None  # x - mean(x), which stands for an x that may be another Sub
        producer = None if old is None else old.producer()
        if producer is None or producer.op_identifier() != node.op_identifier():
            return None
        return producer

    def original(self, value: ir.Value) -> ir.Value | None:
        """Return what a value of the rewritten model stands for."""
        return self.stands_for.get(value) or self._old.get(self._after.ref(value))
