"""Deciding which weights may be shifted: those whose shift ends in norms that do not see it.

    LN(x + s 1) = LN(x), so A u + b before a LayerNorm may be (A + 1 c') u + b + d 1 for any c, d

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, appendix C.
"""

from collections import Counter

from onnxfold.graph import ModelInfo
from onnxfold.graph.reached import reached
from onnxfold.norms import find_norms
from onnxfold.passes.base import Settings
from onnxfold.passes.shifting.plan import ShiftingPlan, WeightShift
from onnxfold.streams.dataflow import ZeroMeanGraph, walk_back
from onnxfold.streams.model_transfers import ModelTransfers, Point


def decide(info: ModelInfo, settings: Settings) -> ShiftingPlan:
    """Return the weights before the LayerNorms of the model of which no reader sees a shift."""
    if settings.shift is None:
        return ShiftingPlan()
    sites = find_norms(info)
    asked = [site for site in sites if site.subtracts_mean and site.refusal is None]
    graph = walk_back(ModelTransfers(info, sites), asked)
    seen = _seen(graph)
    fibers = Counter(point.value for point in graph.points)
    return ShiftingPlan(
        tuple(
            WeightShift(info.ref(point.value), point.fiber)
            for point, facts in graph.points.items()
            if facts.constant and point not in seen and fibers[point.value] == 1
            and point.fiber.whole and point.fiber.blocks
        ),
        settings.shift,
    )  # fmt: skip


def _seen(graph: ZeroMeanGraph) -> set[Point]:
    """Return the points whose shift a reader sees, at once or behind carriers."""
    makes_move: dict[Point, list[Point]] = {}
    for point, facts in graph.points.items():
        for moved in (*facts.carries_to, *facts.siblings):
            makes_move.setdefault(moved, []).append(point)
    seen = [point for point, facts in graph.points.items() if facts.exact]
    return set(reached(seen, lambda point: makes_move.get(point, ())))
