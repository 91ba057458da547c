"""From the zero-mean graph to a plan: price everything, cut, read the cut, give reasons."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from onnxfold.graph import FLOATS, Fiber, ModelInfo
from onnxfold.graph.reached import reached
from onnxfold.norms import NormSite
from onnxfold.passes.centring.network import CentringCut, solve
from onnxfold.passes.centring.plan import (
    CentringPlan,
    Fold,
    Insertion,
    WeightCentring,
    joined,
    joined_fibers,
)
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph, walk_back
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.targets.costs import Costs, elements, work_beside
from onnxfold.weights.centre import is_centred_weight


@dataclass(frozen=True, slots=True)
class Demand:
    """A LayerNorm that could become an RMSNorm, and the picoseconds that this saves and takes.

    ``operators``: how many operators more a session executes for it.
    """

    site: NormSite
    gain_ps: int
    spent_ps: int = 0
    operators: int = 0

    @property
    def pays(self) -> bool:
        """Whether the fold saves more than it takes."""
        return self.gain_ps > self.spent_ps


def cheapest_plan(
    transfers: ModelTransfers,
    demands: Sequence[Demand],
    costs: Costs,
    *,
    allow_split_bytes: int,
    overflowing: Collection[str] = (),
) -> CentringPlan:
    """Return the cheapest plan; weights above ``allow_split_bytes`` are never stored twice.

    ``overflowing`` are references of weights that are not centred, in the file or at run time.
    """
    view = transfers.view
    graph = walk_back(transfers, [demand.site for demand in demands], overflowing=overflowing)
    prices = _Prices(view, demands, costs, allow_split_bytes)
    gains = [(Point(d.site.input, d.site.fiber), d.gain_ps - d.spent_ps) for d in demands]
    cut = solve(graph, gains, prices.of_copy)
    plan = _read_cut(view, graph, demands, cut, prices)
    operators = plan.operators + len(plan.insertions) * costs.centring_operators
    weights = joined(plan.weights)
    if weights is not None:
        return replace(plan, weights=weights, parts=_parts(view, cut), operators=operators)
    return cheapest_plan(
        transfers.without_parts(),
        demands,
        costs,
        allow_split_bytes=allow_split_bytes,
        overflowing=overflowing,
    )


def _parts(view: ModelInfo, cut: CentringCut) -> tuple[tuple[str, Fiber], ...]:
    """Return the values whose parts are centered, joined as far as possible."""
    found: dict[str, list[Fiber]] = {}
    for point in cut.centred:
        if point.fiber.part is not None and view.tensor(point.value) is None:
            found.setdefault(view.ref(point.value), []).append(point.fiber)
    return tuple((ref, fiber) for ref in sorted(found) for fiber in joined_fibers(found[ref]))


class _Prices:
    """The cost of a centered copy of a point, with the size of the largest norm if unknown."""

    def __init__(
        self, view: ModelInfo, demands: Sequence[Demand], costs: Costs, allow_split_bytes: int
    ):
        shapes = [view.shape(demand.site.input) or () for demand in demands]
        self._of_norms = frozenset(dim for shape in shapes for dim in shape)
        self._largest = max(map(elements, shapes), default=0)
        self._view = view
        self._costs = costs
        self._allow_split_bytes = allow_split_bytes

    def of_copy(self, point: Point, facts: PointFacts) -> int | None:
        """Return the price in picoseconds, or None if no copy may or can be made."""
        if facts.constant:
            return self._of_split(point, facts)
        if facts.opaque is not None and facts.opaque.code is RefusalCode.NON_FINITE_WEIGHT:
            return None
        shape = self._view.shape(point.value)
        fiber = point.fiber
        if not fiber.whole or not fiber.blocks or fiber.part is not None or shape is None:
            return None
        if point.value.dtype not in FLOATS:
            return None
        sizes = dict(enumerate(shape))
        if not all(isinstance(sizes.get(axis), int) for axis in point.fiber.axes):
            return None  # a proof could not follow a size that only a scale reveals
        size = elements(tuple(sizes[axis] for axis in fiber.axes))
        work = work_beside(shape, size, self._of_norms, self._largest)
        return self._costs.centred(work)

    def _of_split(self, point: Point, facts: PointFacts) -> int | None:
        tensor = self._view.tensor(point.value)
        if tensor is None or tensor.nbytes <= self._allow_split_bytes:
            return self._costs.split
        others = facts.exact or len(facts.carries_to) > 1
        return 0 if others and is_centred_weight(tensor, point.fiber) else None


def _read_cut(
    view: ModelInfo,
    graph: ZeroMeanGraph,
    demands: Sequence[Demand],
    cut: CentringCut,
    prices: _Prices,
) -> CentringPlan:
    folds: list[Fold] = []
    refusals: list[tuple[str, Refusal]] = []
    norms_of: dict[Point, list[str]] = {}
    gain = cost = added = operators = 0
    claimed: set[Point] = set()
    for demand in demands:
        site = demand.site
        point = Point(site.input, site.fiber)
        if point not in cut.at_hand:
            refusals.append((view.ref(site.output), _reason(graph, point, prices)))
            continue
        gain += demand.gain_ps - demand.spent_ps
        added += demand.spent_ps
        operators += demand.operators
        writers = _writers(view, graph, cut, point, claimed)
        folds.append(Fold(site.name, view.ref(site.output), writers))
        norms_of.setdefault(point, []).append(view.ref(site.output))
    weights: list[WeightCentring] = []
    insertions: list[Insertion] = []
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
    return CentringPlan(
        tuple(folds),
        tuple(weights),
        tuple(insertions),
        tuple(refusals),
        gain,
        cost,
        operators=operators,
        added_ps=added,
    )


def _writers(
    view: ModelInfo, graph: ZeroMeanGraph, cut: CentringCut, start: Point, claimed: set[Point]
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
    view: ModelInfo, graph: ZeroMeanGraph, cut: CentringCut, point: Point
) -> tuple[ReaderRef, ...]:
    """Return the node inputs that must read the centered copy: inputs of centered carriers."""
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

    Other readers of a weight that may be stored twice are named only as a last resort.
    """

    def is_split(point: Point, facts: PointFacts) -> bool:
        return facts.constant and prices.of_copy(point, facts) is not None

    def onward(point: Point) -> tuple[Point, ...]:
        facts = graph.points[point]
        ends = facts.zero_mean or is_split(point, facts)
        return () if ends else facts.carried + facts.carries_to + facts.siblings

    obstacle: Refusal | None = None
    for point in reached([start], onward):
        facts = graph.points[point]
        found = facts.opaque or (facts.exact[0] if facts.exact else None)
        if found is None or facts.zero_mean:
            continue
        obstacle = obstacle or found
        if not is_split(point, facts):
            obstacle = found
            break
    if obstacle is None:
        return Refusal(
            RefusalCode.NOT_WORTH, "centering its input would cost more than it saves", ()
        )
    sentence = f"{obstacle.sentence}; an inserted centering would cost more than it saves"
    return Refusal(obstacle.code, sentence, obstacle.nodes)
