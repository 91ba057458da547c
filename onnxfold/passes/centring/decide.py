"""From the zero-mean graph to a plan: price everything, cut, read the cut, give reasons."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.model_io import FileTensor
from onnxfold.norms.site import NormSite
from onnxfold.passes.centring.dataflow import CENTRABLE, PointFacts, ZeroMeanGraph, walk_back
from onnxfold.passes.centring.network import Cut, free_points, solve
from onnxfold.passes.centring.relations import Assumptions, Point, Relations
from onnxfold.passes.costs import Costs, elements
from onnxfold.passes.plan import Fold, Insertion, Plan, ReaderRef, WeightCentring
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.means import is_centred

__all__ = ["Demand", "count_foldable", "decide"]

_SAMPLED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Demand:
    """A LayerNorm that could become an RMSNorm, and the picoseconds per row that this saves."""

    site: NormSite
    gain_ps: int


def decide(
    relations: Relations,
    demands: Sequence[Demand],
    costs: Costs,
    *,
    allow_split_bytes: int,
    overflowing: Collection[str] = (),
) -> Plan:
    """Return the cheapest plan; weights above ``allow_split_bytes`` are never stored twice.

    ``overflowing`` are references of weights that are not centred, in the file or at run time.
    """
    view = relations.view
    graph = walk_back(relations, [demand.site for demand in demands], overflowing=overflowing)
    prices = _Prices(view, costs, allow_split_bytes)
    gains = [(Point(d.site.input, d.site.fiber), d.gain_ps) for d in demands]
    cut = solve(graph, gains, prices.of_copy)
    return _read_cut(view, graph, demands, cut, prices)


def count_foldable(
    relations: Relations, sites: Sequence[NormSite], assumptions: Assumptions
) -> int:
    """Count the norms that fold under a paper's rules: weights may be split, no centring added."""
    free = free_points(walk_back(relations, sites, assumptions))
    return sum(Point(site.input, site.fiber) in free for site in sites)


class _Prices:
    """What a centred copy of a point costs."""

    def __init__(self, view: ModelInfo, costs: Costs, allow_split_bytes: int):
        self._view = view
        self._costs = costs
        self._allow_split_bytes = allow_split_bytes

    def of_copy(self, point: Point, facts: PointFacts) -> int | None:
        """Return the price in picoseconds, or None where no copy may or can be made."""
        if facts.constant:
            return self._of_split(point, facts)
        if facts.opaque is not None and facts.opaque.code is RefusalCode.NON_FINITE_WEIGHT:
            return None
        shape = self._view.shape(point.value)
        if not point.fiber.whole or not point.fiber.blocks or shape is None:
            return None
        if point.value.dtype not in CENTRABLE:
            return None
        sizes = dict(enumerate(shape))
        if not all(isinstance(sizes.get(axis), int) for axis in point.fiber.axes):
            return None  # only a norm's scale tells the size, so no proof could follow the mean
        return elements(shape) * self._costs.centring

    def _of_split(self, point: Point, facts: PointFacts) -> int | None:
        tensor = self._view.tensor(point.value)
        if tensor is None or tensor.nbytes <= self._allow_split_bytes:
            return self._costs.split
        others = facts.exact or len(facts.carries_to) > 1
        if others and _may_be_centred(tensor, point.fiber):
            return 0 if is_centred(tensor.numpy(), point.fiber) else None
        return None


def _may_be_centred(tensor: ir.TensorProtocol, fiber: Fiber) -> bool:
    """Whether some rows of a large weight are centred, which costs the memory of these rows."""
    rows = tensor.shape.numpy()[0] if len(tensor.shape) else 0
    if not isinstance(tensor, FileTensor) or rows < 2 * _SAMPLED_ROWS or 0 in fiber.axes:
        return True
    return is_centred(tensor.rows(range(0, rows, rows // _SAMPLED_ROWS)), fiber)


def _read_cut(
    view: ModelInfo,
    graph: ZeroMeanGraph,
    demands: Sequence[Demand],
    cut: Cut,
    prices: _Prices,
) -> Plan:
    folds: list[Fold] = []
    refusals: list[tuple[str, Refusal]] = []
    norms_of: dict[Point, list[str]] = {}
    gain = 0
    claimed: set[Point] = set()
    for demand in demands:
        site = demand.site
        point = Point(site.input, site.fiber)
        if point not in cut.at_hand:
            refusals.append((view.ref(site.output), _reason(graph, point, prices)))
            continue
        gain += demand.gain_ps
        writers = _writers(view, graph, cut, point, claimed)
        folds.append(Fold(site.name, view.ref(site.output), writers))
        norms_of.setdefault(point, []).append(view.ref(site.output))
    weights: list[WeightCentring] = []
    insertions: list[Insertion] = []
    cost = 0
    for point, facts in graph.points.items():
        if facts.zero_mean or point not in cut.at_hand:
            continue
        copied = point not in cut.centred
        if copied and facts.constant and prices.of_copy(point, facts) == 0:
            continue  # a weight that is centred as it stands
        readers = _readers_of_copy(view, graph, cut, point) if copied else ()
        if copied:
            cost += prices.of_copy(point, facts) or 0
        norms = tuple(norms_of.get(point, ())) if copied else ()
        if facts.constant:
            tensor = view.tensor(point.value)
            nbytes = 0 if tensor is None else tensor.nbytes
            ref = view.ref(point.value)
            weights.append(WeightCentring(ref, point.fiber, nbytes, readers, norms))
        elif copied:
            insertions.append(Insertion(view.ref(point.value), point.fiber, readers, norms))
    return Plan(tuple(folds), tuple(weights), tuple(insertions), tuple(refusals), gain, cost)


def _writers(
    view: ModelInfo, graph: ZeroMeanGraph, cut: Cut, start: Point, claimed: set[Point]
) -> tuple[str, ...]:
    """Return the weights centred for ``start`` that are not yet claimed, and claim them."""
    writers, queue = [], deque([start])
    while queue:
        point = queue.popleft()
        if point in claimed or graph.points[point].zero_mean:
            continue
        claimed.add(point)
        if graph.points[point].constant:
            writers.append(view.ref(point.value))
        elif point in cut.centred:
            queue.extend(graph.points[point].carried)
    return tuple(writers)


def _readers_of_copy(
    view: ModelInfo, graph: ZeroMeanGraph, cut: Cut, point: Point
) -> tuple[ReaderRef, ...]:
    """Return the node inputs that must read the centred copy: those of centred carriers."""
    readers = set()
    for other in cut.centred:
        node, facts = other.value.producer(), graph.points[other]
        if node is None:
            continue
        for index, operand in zip(facts.positions, facts.carried, strict=True):
            if operand == point:
                first = next(output for output in node.outputs if output.name)
                readers.add(ReaderRef(view.ref(first), index))
    return tuple(sorted(readers))


def _reason(graph: ZeroMeanGraph, start: Point, prices: _Prices) -> Refusal:
    """Return the nearest obstacle to centring the norm's input for free.

    Other readers of a weight that may be stored twice are named only where nothing else stands in
    the way.
    """
    seen, queue = {start}, deque([start])
    obstacle: Refusal | None = None
    while queue:
        point = queue.popleft()
        facts = graph.points[point]
        if facts.zero_mean:
            continue
        found = facts.opaque or (facts.exact[0] if facts.exact else None)
        obstacle = obstacle or found
        if facts.constant and prices.of_copy(point, facts) is not None:
            continue
        if found is not None:
            obstacle = found
            break
        for point in facts.carried + facts.carries_to + facts.siblings:
            if point not in seen:
                seen.add(point)
                queue.append(point)
    if obstacle is None:
        return Refusal(
            RefusalCode.NOT_WORTH, "centring its input would cost more than it saves", ()
        )
    sentence = f"{obstacle.sentence}; an inserted centring would cost more than it saves"
    return Refusal(obstacle.code, sentence, obstacle.nodes)
