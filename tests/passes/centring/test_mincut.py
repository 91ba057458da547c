"""The minimum cut against all subsets of small networks, and against networkx on larger ones."""

from __future__ import annotations

import math
import random
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.algorithms.flow import boykov_kolmogorov

from onnxfold.errors import InvariantError
from onnxfold.streams.mincut import INFINITE, minimum_cut

Edges = list[tuple[int, int, int]]


def _brute_force(nodes: int, edges: Edges) -> tuple[int, frozenset[int]] | None:
    """The value of the best cut and its smallest source side; None if every cut is infinite."""
    best: int | None = None
    sides: list[frozenset[int]] = []
    others = range(2, nodes)
    for size in range(nodes - 1):
        for chosen in combinations(others, size):
            side = frozenset({0, *chosen})
            crossing = [k for a, b, k in edges if a in side and b not in side]
            if INFINITE in crossing:
                continue
            value = sum(crossing)
            if best is None or value < best:
                best, sides = value, [side]
            elif value == best:
                sides.append(side)
    if best is None:
        return None
    return best, frozenset.intersection(*sides)


def _network(rng: random.Random) -> tuple[int, Edges]:
    nodes = rng.randint(2, 8)
    edges = []
    for _ in range(rng.randint(0, 3 * nodes)):
        a, b = rng.sample(range(nodes), 2)
        edges.append((a, b, INFINITE if rng.random() < 0.25 else rng.randint(0, 6)))
    return nodes, edges


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.randoms(use_true_random=False))
def test_the_cut_is_the_best_of_all_and_its_source_side_the_smallest(rng: random.Random) -> None:
    nodes, edges = _network(rng)
    expected = _brute_force(nodes, edges)
    if expected is None:
        with pytest.raises(InvariantError, match="must not be cut"):
            minimum_cut(edges, 0, 1)
        return
    value, side = minimum_cut(edges, 0, 1)
    assert value == expected[0]
    assert side == expected[1]


def _by_networkx(edges: Edges) -> tuple[int, frozenset[int]]:
    """The value of a minimum cut and its smallest source side, or NetworkXUnbounded."""
    network = nx.DiGraph()
    network.add_nodes_from((0, 1))
    for a, b, k in edges:
        known = network.get_edge_data(a, b, {"capacity": 0}).get("capacity", math.inf)
        network.add_edge(a, b, capacity=math.inf if k == INFINITE else known + k)
    residual = boykov_kolmogorov(network, 0, 1)
    left = [(a, b) for a, b, edge in residual.edges(data=True) if edge["flow"] < edge["capacity"]]
    side = nx.descendants(nx.DiGraph([*left, (0, 0)]), 0) | {0}
    return int(residual.graph["flow_value"]), frozenset(side)


def _layered(rng: random.Random) -> Edges:
    """A stream of values and their writers, as the analysis makes them, with noise."""
    nodes = rng.randint(30, 300)
    edges = [(0, rng.randint(2, nodes - 1), rng.randint(1, 1 << 40)) for _ in range(nodes // 6)]
    for node in range(2, nodes):
        near = [rng.randint(max(2, node - 8), min(nodes - 1, node + 8)) for _ in range(2)]
        edges += [(node, other, INFINITE) for other in near if other != node]
        if rng.random() < 0.4:
            edges.append((node, rng.randint(2, nodes - 1), rng.randint(0, 1 << 40)))
        if rng.random() < 0.15:
            edges.append((node, 1, rng.randint(0, 1 << 40)))
    return [(a, b, k) for a, b, k in edges if a != b]


@pytest.mark.parametrize("seed", range(60))
def test_larger_cuts_are_those_of_networkx(seed: int) -> None:
    edges = _layered(random.Random(seed))  # noqa: S311 # no secret
    assert minimum_cut(edges, 0, 1) == _by_networkx(edges)


def test_all_kinds_of_networks_are_drawn() -> None:
    rng = random.Random(0)  # noqa: S311 # no secret
    answers = [_brute_force(*_network(rng)) for _ in range(300)]
    assert sum(answer is None for answer in answers) > 10
    assert sum(answer is not None and answer[0] > 0 for answer in answers) > 50
    assert sum(answer is not None and len(answer[1]) > 1 for answer in answers) > 50


def test_parallel_edges_add_up_and_an_infinite_one_wins() -> None:
    assert minimum_cut([(0, 1, 2), (0, 1, 3)], 0, 1)[0] == 5
    edges = [(0, 2, 4), (2, 1, 1), (2, 1, INFINITE), (2, 1, 7)]
    assert minimum_cut(edges, 0, 1) == (4, frozenset({0}))


def test_capacities_beyond_32_bits_are_exact() -> None:
    large = 1 << 50
    assert minimum_cut([(0, 2, large + 1), (2, 1, large)], 0, 1) == (large, frozenset({0, 2}))


def test_a_network_without_edges_costs_nothing() -> None:
    assert minimum_cut([], 0, 1) == (0, frozenset({0}))
