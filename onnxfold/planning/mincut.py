"""Minimum cut of a network with integer capacities; knows nothing of ONNX."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

__all__ = ["INFINITE", "minimum_cut"]

INFINITE = -1
_LIMIT = (1 << 31) - 1  # scipy computes flows in int32


def minimum_cut(
    nodes: int, edges: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, frozenset[int]]:
    """Return the value of a minimum cut and its smallest source side.

    ``edges`` are (from, to, capacity) with capacity INFINITE where the edge must not be cut.
    Law: max-flow equals min-cut; the nodes that the residual network still reaches from the
    source form the smallest source side.  Raises OverflowError when the finite capacities add up
    to more than 2**30.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    total = sum(capacity for *_, capacity in edges if capacity != INFINITE)
    if total >= _LIMIT // 2:
        raise OverflowError(f"capacities add up to {total}, more than int32 flows can hold")
    merged: dict[tuple[int, int], int] = {}
    for start, end, capacity in edges:
        amount = total + 1 if capacity == INFINITE else capacity
        merged[start, end] = min(merged.get((start, end), 0) + amount, total + 1)
    if not merged:
        return 0, frozenset({source})
    rows, columns = zip(*merged, strict=True)
    weights = np.fromiter(merged.values(), dtype=np.int32, count=len(merged))
    graph = csr_array((weights, (rows, columns)), shape=(nodes, nodes))
    result = maximum_flow(graph, source, sink)
    residual = csr_array(graph - result.flow)
    return int(result.flow_value), _reachable(residual, source)


def _reachable(residual: object, source: int) -> frozenset[int]:
    indptr, indices, data = residual.indptr, residual.indices, residual.data  # type: ignore[attr-defined] # a csr_array, untyped
    seen, queue = {source}, deque([source])
    while queue:
        node = queue.popleft()
        for position in range(indptr[node], indptr[node + 1]):
            neighbour = int(indices[position])
            if data[position] > 0 and neighbour not in seen:
                seen.add(neighbour)
                queue.append(neighbour)
    return frozenset(seen)
