"""The cut against every labelling of small graphs: exact, moved or centred, with copies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.network import CentringCut, solve
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph
from onnxfold.streams.model_transfers import Point

_FIBER = Fiber.of([AxisBlock(1, 1, 8, 1)])
_NO = Refusal(RefusalCode.ACTIVATION, "nothing is known of it", ())
_MOST_POINTS = 7
_EXACT, _MOVED, _CENTRED = range(3)

Gains = list[tuple[Point, int]]
Prices = dict[Point, int | None]


def _random_graph(rng: random.Random) -> ZeroMeanGraph:
    """Points in a row that carry earlier ones; what carries a point is told to it, as in a walk."""
    points = [Point(ir.Value(name=f"v{i}"), _FIBER) for i in range(rng.randint(2, _MOST_POINTS))]
    carried: dict[Point, tuple[Point, ...]] = {}
    kinds: dict[Point, str] = {}
    for i, point in enumerate(points):
        kinds[point] = rng.choice(("carrier", "carrier", "constant", "zero", "opaque", "writer"))
        takes = kinds[point] == "carrier" and i > 0
        carried[point] = tuple(rng.sample(points[:i], min(i, rng.randint(1, 2)))) if takes else ()
    facts = {}
    for point in points:
        kind = kinds[point]
        siblings = tuple(
            other
            for other in points
            if other is not point and carried[point] and carried[other] == carried[point]
        )
        facts[point] = PointFacts(
            constant=kind == "constant",
            zero_mean=kind == "zero",
            opaque=_NO if kind == "opaque" else None,
            carried=carried[point],
            positions=tuple(range(len(carried[point]))),
            siblings=siblings,
            carries_to=tuple(other for other in points if point in carried[other]),
            exact=(_NO,) if rng.random() < 0.15 else (),
        )
    return facts


def _random_prices(rng: random.Random, graph: ZeroMeanGraph) -> tuple[Gains, Prices]:
    gains = [(point, rng.randint(1, 9)) for point in graph if rng.random() < 0.7]
    prices = {point: rng.choice((None, 0, 2, 5, 11)) for point in graph}
    return gains, prices


def _labellings(graph: ZeroMeanGraph) -> Iterator[dict[Point, int]]:
    """Yield every choice in which what sees a move is exact, and what carries one moves."""
    points = [point for point, facts in graph.items() if not facts.zero_mean]
    for labels in product((_EXACT, _MOVED, _CENTRED), repeat=len(points)):
        label = dict.fromkeys(graph, _CENTRED)
        label.update(zip(points, labels, strict=True))
        moving = [point for point in points if label[point] != _EXACT]
        if all(
            graph[point].opaque is None
            and not graph[point].exact
            and all(
                label[other] != _EXACT for other in graph[point].carries_to + graph[point].siblings
            )
            for point in moving
        ):
            yield label


def _cost(graph: ZeroMeanGraph, label: dict[Point, int], gains: Gains, prices: Prices) -> float:
    """Return what the cheapest copies cost and which gains are lost, once labels are chosen."""
    stands = {point for point in graph if label[point] == _CENTRED}
    needed = {
        operand
        for point in stands
        if not graph[point].zero_mean
        for operand in graph[point].carried
        if operand not in stands
    }
    cost = sum(_price(prices, point) for point in needed)
    wanted: dict[Point, int] = {}
    for point, gain in gains:
        if point not in stands and point not in needed:
            wanted[point] = wanted.get(point, 0) + gain
    return cost + sum(min(gain, _price(prices, point)) for point, gain in wanted.items())


def _price(prices: Prices, point: Point) -> float:
    price = prices[point]
    return float("inf") if price is None else price


def _label(cut: CentringCut, point: Point) -> int:
    return _CENTRED if point in cut.centred else _MOVED if point in cut.moved else _EXACT


@pytest.mark.parametrize("seed", range(150))
def test_no_labelling_costs_less_than_the_cut(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # no secret
    graph = _random_graph(rng)
    gains, prices = _random_prices(rng, graph)
    labellings = list(_labellings(graph))
    best = min(_cost(graph, label, gains, prices) for label in labellings)
    cut = solve(graph, gains, lambda point, _: prices[point])
    chosen = {
        point: _CENTRED if facts.zero_mean else _label(cut, point) for point, facts in graph.items()
    }
    assert chosen in labellings
    assert _cost(graph, chosen, gains, prices) == best
    lost = sum(gain for point, gain in gains if point not in cut.at_hand)
    copied = [
        point
        for point, facts in graph.items()
        if point in cut.at_hand and point not in cut.centred and not facts.zero_mean
    ]
    assert lost + sum(_price(prices, point) for point in copied) == best


def test_each_of_the_three_labels_is_the_best_of_some_graph() -> None:
    found: set[int] = set()
    for seed in range(150):
        rng = random.Random(seed)  # noqa: S311  # no secret
        graph = _random_graph(rng)
        gains, prices = _random_prices(rng, graph)
        cut = solve(graph, gains, _of(prices))
        found |= {_label(cut, point) for point in graph if not graph[point].zero_mean}
    assert found == {_EXACT, _MOVED, _CENTRED}


def _of(prices: Prices) -> Callable[[Point, PointFacts], int | None]:
    return lambda point, _: prices[point]
