"""The flow network of a zero-mean graph: the modelling choice, alone in a file.

Every point (value v, fiber) is exact, moved by something constant along the fiber, or centred,
which is one such move; three labels are two variables, m_v = 1 if v moves and z_v = 1 if it is
centred.  c_v = 1 if a centred copy of v is at hand.  1 is the source side, 0 the sink side, and an
edge a -> b with capacity k costs k when a = 1 and b = 0:

    SRC -> c_x    gain of the norm on x: lost when x is not at hand centred
    SRC -> z_x    what x - mean(x) alone costs: lost when x itself is not centred
    c_v -> z_v    price of a centred copy, when v itself is not centred
    z_v -> c_u    infinite, for each carried input u of v
    z_v -> m_v    infinite: what is centred moves
    m_v -> m_w    infinite, for each reader w that carries v's shift, and for v's sibling outputs
    m_v -> SNK    infinite, when v is opaque, is read exactly or leaves the graph

A norm that subtracts the mean has no edge from m_x: it does not see that x moves.  Zero-mean points
have no outgoing edge: they are centred as they stand.

Source: Ishikawa, "Exact optimization for Markov random fields with convex priors", 2003, for
ordered labels as cuts of one chain each.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph
from onnxfold.streams.mincut import INFINITE, minimum_cut
from onnxfold.streams.model_transfers import Point

_SOURCE, _SINK = 0, 1


@dataclass(frozen=True, slots=True)
class CentringCut:
    """The cheapest choice: points that move, of these the centred, and those at hand centred."""

    moved: frozenset[Point]
    centred: frozenset[Point]
    at_hand: frozenset[Point]


def solve(
    graph: ZeroMeanGraph,
    gains: Iterable[tuple[Point, int]],
    copy_price: Callable[[Point, PointFacts], int | None],
    in_place: Iterable[tuple[Point, int]] = (),
) -> CentringCut:
    """Return the minimum cut; ``copy_price`` gives None where no copy can be made.

    ``in_place``: gains that no centred copy of a point brings, since it would be what they save.
    """
    number = {point: 2 + 3 * i for i, point in enumerate(graph)}
    edges: list[tuple[int, int, int]] = []
    for point, gain in gains:
        if gain > 0:
            edges.append((_SOURCE, number[point] + 2, gain))
    edges += ((_SOURCE, number[point] + 1, gain) for point, gain in in_place)
    for point, facts in graph.items():
        if facts.zero_mean:
            continue
        price = copy_price(point, facts)
        z, c = number[point] + 1, number[point] + 2
        edges.append((c, z, INFINITE if price is None else price))
        edges += _structural(number[point], facts, number)
    _, source_side = minimum_cut(edges, _SOURCE, _SINK)
    return CentringCut(
        *(
            frozenset(point for point, m in number.items() if m + at in source_side)
            for at in range(3)
        )
    )


def _structural(
    m: int, facts: PointFacts, number: Mapping[Point, int]
) -> list[tuple[int, int, int]]:
    z = m + 1
    edges = [(z, number[operand] + 2, INFINITE) for operand in facts.carried]
    edges += [(m, number[reader], INFINITE) for reader in facts.carries_to + facts.siblings]
    edges.append((z, m, INFINITE))
    if facts.opaque is not None or facts.exact:
        edges.append((m, _SINK, INFINITE))
    return edges
