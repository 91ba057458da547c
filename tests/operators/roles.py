"""What a fold rests on: which law line was used in which role on the way back from a norm."""

from __future__ import annotations

from collections import Counter

from onnxfold.graph import ModelInfo
from onnxfold.operators.families.rules import transfer_of
from onnxfold.refusal import Refusal
from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph
from onnxfold.streams.model_transfers import ModelTransfers, Point

__all__ = ["roles_of"]


def roles_of(view: ModelInfo, transfers: ModelTransfers, graph: ZeroMeanGraph) -> Counter[str]:
    """Count (line, role) over all points that norms reach.

    ``writer``: a constant input is centered; ``carrier``: an input that is computed; ``zero mean``;
    ``sink``: a reader that does not see the shift; ``exact``: one that must see the value;
    ``passes``: a reader that passes the shift on.
    """
    seen: Counter[str] = Counter()
    for point, facts in graph.items():
        producer = point.value.producer()
        if producer is not None:
            for role in _as_producer(point, facts, graph):
                seen[_name(producer.domain, producer.op_type, role)] += 1
        if facts.zero_mean:
            continue
        for reader in view.readers(point.value):
            node = reader.node
            if transfer_of(node) is None:
                continue
            response = transfers.forward(point, reader)
            exact = isinstance(response, Refusal)
            role = "exact" if exact else "passes" if response else "sink"
            seen[_name(node.domain, node.op_type, role)] += 1
    return seen


def _as_producer(point: Point, facts: PointFacts, graph: ZeroMeanGraph) -> list[str]:
    node = point.value.producer()
    if node is None or transfer_of(node) is None:
        return []
    if facts.zero_mean and not facts.constant:
        return ["zero mean"]
    constant = {graph[operand].constant for operand in facts.carried}
    return [role for role, weight in (("writer", True), ("carrier", False)) if weight in constant]


def _name(domain: str, op_type: str, role: str) -> str:
    return f"{domain + '.' if domain else ''}{op_type} {role}"
