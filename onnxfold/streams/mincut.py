"""Minimum cut of a network with integer capacities, independent of ONNX."""

from collections import deque
from collections.abc import Sequence

from onnxfold.errors import InvariantError

INFINITE = -1


def minimum_cut(
    edges: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, frozenset[int]]:
    """Return the value of a minimum cut and its smallest source side.

    ``edges`` are (from, to, capacity) with capacity INFINITE if the edge must not be cut. Law:
    max-flow equals min-cut; the nodes that the residual network still reaches from the source form
    the smallest source side. Raises InvariantError if source and sink are joined by edges that must
    not be cut.

    Source: Dinitz, "Algorithm for solution of a problem of maximum flow in networks with power
    estimation", 1970.
    """
    # More than the sum of all capacities, so a minimum cut avoids such an edge if any cut does.
    beyond = 1 + sum(capacity for *_, capacity in edges if capacity != INFINITE)
    residual = _Residual(source, sink)
    for start, end, capacity in edges:
        residual.add(start, end, beyond if capacity == INFINITE else capacity)
    value = 0
    levels = residual.levels()
    while sink in levels:
        value += residual.blocking_flow(levels)
        levels = residual.levels()
    if value >= beyond:
        raise InvariantError("source and sink are joined by edges that must not be cut")
    return value, frozenset(levels)


class _Residual:
    """The remaining capacity of each edge; edge i ^ 1 is the reverse of edge i."""

    def __init__(self, source: int, sink: int):
        self._source = source
        self._sink = sink
        self._ends: list[int] = []
        self._left: list[int] = []
        self._from: dict[int, list[int]] = {source: [], sink: []}

    def add(self, start: int, end: int, capacity: int) -> None:
        """Add an edge."""
        for node, other, left in ((start, end, capacity), (end, start, 0)):
            self._from.setdefault(node, []).append(len(self._ends))
            self._ends.append(other)
            self._left.append(left)

    def levels(self) -> dict[int, int]:
        """Return the number of edges on the shortest path to each node that the source reaches."""
        levels, queue = {self._source: 0}, deque([self._source])
        while queue:
            node = queue.popleft()
            for edge in self._from[node]:
                end = self._ends[edge]
                if self._left[edge] and end not in levels:
                    levels[end] = levels[node] + 1
                    queue.append(end)
        return levels

    def blocking_flow(self, levels: dict[int, int]) -> int:
        """Send flow up the levels until every path to the sink has a full edge; return how much."""
        untried = {node: list(self._from[node]) for node in levels}
        total, node, path = 0, self._source, list[int]()
        while True:
            if node == self._sink:
                total += self._send(path)
                node, path = self._source, []
            elif untried[node]:
                edge = untried[node][-1]
                end = self._ends[edge]
                if self._left[edge] and levels.get(end) == levels[node] + 1:
                    path.append(edge)
                    node = end
                else:
                    untried[node].pop()
            elif path:
                node = self._ends[path.pop() ^ 1]
                untried[node].pop()
            else:
                return total

    def _send(self, path: list[int]) -> int:
        amount = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
        return amount
