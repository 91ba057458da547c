"""The flow network of a zero-mean graph: the modelling choice, alone in a file.

For every point (value v, fiber): z_v = 1 if v itself is computed centred, c_v = 1 if a centred
copy of v is at hand.  1 is the source side, 0 the sink side, and an edge a -> b with capacity k
costs k when a = 1 and b = 0:

    SRC -> c_x    gain of the norm on x: lost when x is not at hand centred
    c_v -> z_v    price of a centred copy, when v itself stays exact
    z_v -> c_u    infinite, for each carried input u of v
    z_v -> z_w    infinite, for each reader w that carries v's shift, and for v's sibling outputs
    z_v -> SNK    infinite, when v is opaque, is read exactly or leaves the graph

Zero-mean points have no outgoing edges: they are already centered.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph
from onnxfold.streams.mincut import INFINITE, minimum_cut
from onnxfold.streams.model_transfers import Point

_SOURCE, _SINK = 0, 1


@dataclass(frozen=True, slots=True)
class CentringCut:
    """The cheapest choice: points computed centred (z = 1) and points at hand centred (c = 1)."""

    centred: frozenset[Point]
    at_hand: frozenset[Point]


def solve(
    graph: ZeroMeanGraph,
    gains: Iterable[tuple[Point, int]],
    copy_price: Callable[[Point, PointFacts], int | None],
) -> CentringCut:
    """Return the minimum cut; ``copy_price`` returns None if no copy can be made."""
    number = {point: 2 + 2 * i for i, point in enumerate(graph.points)}
    edges: list[tuple[int, int, int]] = []
    for point, gain in gains:
        if gain > 0:
            edges.append((_SOURCE, number[point] + 1, gain))
    for point, facts in graph.points.items():
        if facts.zero_mean:
            continue
        z, c = number[point], number[point] + 1
        price = copy_price(point, facts)
        if price is None:
            edges.append((c, z, INFINITE))
        else:
            edges.append((c, z, price))
        edges += _structural(z, facts, number)
    _, source_side = minimum_cut(edges, _SOURCE, _SINK)
    return CentringCut(
        frozenset(point for point, z in number.items() if z in source_side),
        frozenset(point for point, z in number.items() if z + 1 in source_side),
    )


def free_points(graph: ZeroMeanGraph) -> frozenset[Point]:
    """Return the points that a cut of cost 0 has at hand centred: weights split free, no copies.

    Law: such a cut exists for v exactly when no path of infinite edges leads from c_v to SNK.
    """
    number = {point: i for i, point in enumerate(graph.points)}
    depend: list[list[int]] = [[] for _ in number]  # who is lost with a point
    lost = deque[int]()
    for point, facts in graph.points.items():
        if facts.zero_mean:
            continue
        if facts.opaque is not None or facts.exact:
            lost.append(number[point])
        operands = (at for at in facts.carried if not graph.points[at].constant)
        for other in (*operands, *facts.carries_to, *facts.siblings):
            depend[number[other]].append(number[point])
    seen = set(lost)
    while lost:
        fresh = [other for other in depend[lost.popleft()] if other not in seen]
        seen.update(fresh)
        lost.extend(fresh)
    return frozenset(
        point for point, i in number.items() if graph.points[point].constant or i not in seen
    )


def _structural(
    z: int, facts: PointFacts, number: Mapping[Point, int]
) -> list[tuple[int, int, int]]:
    edges = [(z, number[operand] + 1, INFINITE) for operand in facts.carried]
    edges += [(z, number[reader], INFINITE) for reader in facts.carries_to + facts.siblings]
    if facts.opaque is not None or facts.exact:
        edges.append((z, _SINK, INFINITE))
    return edges
