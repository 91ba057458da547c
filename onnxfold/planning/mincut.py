"""Minimum cut of a network with integer capacities; knows nothing of ONNX."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

__all__ = ["INFINITE", "minimum_cut"]

INFINITE = -1


def minimum_cut(
    edges: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, frozenset[int]]:
    """Return the value of a minimum cut and its smallest source side.

    ``edges`` are (from, to, capacity) with capacity INFINITE where the edge must not be cut.
    Law: max-flow equals min-cut; the nodes that the residual network still reaches from the
    source form the smallest source side.  Raises networkx.NetworkXUnbounded when source and sink
    are joined by edges that must not be cut.
    """
    import networkx as nx
    from networkx.algorithms.flow import boykov_kolmogorov

    network = nx.DiGraph()
    network.add_nodes_from((source, sink))
    for start, end, capacity in edges:
        if capacity == INFINITE:
            network.add_edge(start, end)  # without a capacity: unbounded
            network[start][end].pop("capacity", None)
        elif not network.has_edge(start, end):
            network.add_edge(start, end, capacity=capacity)
        elif "capacity" in network[start][end]:
            network[start][end]["capacity"] += capacity
    residual = boykov_kolmogorov(network, source, sink)
    return int(residual.graph["flow_value"]), _reachable(residual, source)


def _reachable(residual: Any, source: int) -> frozenset[int]:
    seen, queue = {source}, deque([source])
    while queue:
        for neighbour, edge in residual[queue.popleft()].items():
            if edge["flow"] < edge["capacity"] and neighbour not in seen:
                seen.add(neighbour)
                queue.append(neighbour)
    return frozenset(seen)
