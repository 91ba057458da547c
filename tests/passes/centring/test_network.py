"""The network's shortcut for cuts of cost 0 against the cut itself."""

from __future__ import annotations

import random

import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.network import free_points, solve
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph
from onnxfold.streams.model_transfers import Point

_FIBER = Fiber.of([AxisBlock(1, 1, 8, 1)])
_NO = Refusal(RefusalCode.ACTIVATION, "nothing is known of it", ())


def _random_graph(rng: random.Random) -> ZeroMeanGraph:
    """Points in a row that carry earlier ones; the carrier of a point is recorded, as in a walk."""
    points = [Point(ir.Value(name=f"v{i}"), _FIBER) for i in range(rng.randint(2, 12))]
    carried: dict[Point, tuple[Point, ...]] = {}
    kinds: dict[Point, str] = {}
    for i, point in enumerate(points):
        kinds[point] = rng.choice(("carrier", "carrier", "constant", "zero", "opaque", "writer"))
        takes = kinds[point] == "carrier" and i > 0
        carried[point] = tuple(rng.sample(points[:i], min(i, rng.randint(1, 2)))) if takes else ()
    facts = {}
    for point in points:
        kind = kinds[point]
        readers = tuple(other for other in points if point in carried[other])
        facts[point] = PointFacts(
            constant=kind == "constant",
            zero_mean=kind == "zero",
            opaque=_NO if kind == "opaque" else None,
            carried=carried[point],
            positions=tuple(range(len(carried[point]))),
            siblings=(),
            carries_to=readers,
            exact=(_NO,) if rng.random() < 0.15 else (),
        )
    return ZeroMeanGraph(facts, ())


@pytest.mark.parametrize("seed", range(300))
def test_a_point_is_free_exactly_where_the_cut_has_it_centred_at_no_cost(seed: int) -> None:
    graph = _random_graph(random.Random(seed))  # noqa: S311  # no secret
    gains = [(point, 1) for point in graph.points]
    cut = solve(graph, gains, lambda _, facts: 0 if facts.constant else None)
    assert free_points(graph) == cut.at_hand
