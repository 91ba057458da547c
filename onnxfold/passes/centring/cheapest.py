"""From the zero-mean graph to a plan: price everything, cut, read the cut, give reasons."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from onnxfold.graph import FLOATS, Fiber, ModelInfo, Shape
from onnxfold.graph.traversal import reached
from onnxfold.norms import BareCentring, NormSite
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
from onnxfold.targets.costs import Costs, elements, work, work_beside
from onnxfold.weights.edited import is_centred_weight

_DEAR = "; an inserted centering would cost more than it saves"


class Reasons:
    """The obstacles of one graph, for all values that are not at hand centred."""

    def __init__(
        self,
        view: ModelInfo,
        graph: ZeroMeanGraph,
        cut: CentringCut,
        copy_price: Callable[[Point, PointFacts], int | None],
    ):
        self._view, self._points, self._moved = view, graph, cut.moved
        weights = [point for point, facts in graph.items() if facts.constant]
        split = (p for p in weights if copy_price(p, graph[p]) is not None)
        self._split = frozenset(split)
        self._seen = _seen(graph)
        self._hopeless = _hopeless(graph, self._seen)

    def of(self, start: Point, dear: str = _DEAR) -> Refusal:
        """Return the nearest obstacle to centring a value for free, and whether it moves.

        The other readers of a weight that may be stored twice are named only where nothing else is.
        ``dear``: why it is not centred at a price.
        """
        moved = "; it stays, and does not see that its input moves" if start in self._moved else ""
        obstacle = self._nearest(start, self._split)
        needed = "" if obstacle is None or start in self._hopeless else self._needed(start)
        obstacle = obstacle or self._nearest(start, frozenset())
        if obstacle is None:
            sentence = f"centering its input would cost more than it saves{moved}"
            return Refusal(RefusalCode.NOT_WORTH, sentence, ())
        return Refusal(obstacle.code, f"{obstacle.sentence}{needed}{moved}{dear}", obstacle.nodes)

    def _nearest(self, start: Point, ends: frozenset[Point]) -> Refusal | None:
        """Return the nearest of what a point follows from and of what sees that it moves.

        What another value follows from is not asked for where that only moves; ``ends`` are weights
        that are stored twice.
        """

        def onward(at: tuple[Point, bool]) -> list[tuple[Point, bool]]:
            point, is_centred = at
            facts = self._points[point]
            if facts.zero_mean or (is_centred and point in ends):
                return []
            sources = facts.carried if is_centred else ()
            moved = facts.carries_to + facts.siblings
            return [*((each, True) for each in sources), *((each, False) for each in moved)]

        for point, is_centred in reached([(start, True)], onward):
            facts = self._points[point]
            found = facts.opaque or (facts.exact[0] if facts.exact else None)
            if found is not None and not facts.zero_mean and not (is_centred and point in ends):
                return found
        return None

    def _needed(self, start: Point) -> str:
        """Name a weight that would have to be stored twice, where such weights are all it needs."""
        for point in reached([start], lambda point: self._points[point].carried):
            tensor = self._view.tensor(point.value) if point in self._seen else None
            if tensor is not None and point not in self._split:
                ref = self._view.ref(point.value)
                return f"; --allow-split {tensor.nbytes} would store '{ref}' twice instead"
        return ""


def _seen(points: Mapping[Point, PointFacts]) -> frozenset[Point]:
    """Return the points whose move somebody sees, at once or after carriers."""
    before: dict[Point, list[Point]] = {}
    for point, facts in points.items():
        for other in facts.carries_to + facts.siblings:
            before.setdefault(other, []).append(point)
    ends = (point for point, f in points.items() if not f.zero_mean and (f.opaque or f.exact))
    return _all_before(ends, before)


def _hopeless(points: Mapping[Point, PointFacts], seen: frozenset[Point]) -> frozenset[Point]:
    """Return the points that no copy of a weight helps to centre."""
    before: dict[Point, list[Point]] = {}
    for point, facts in points.items():
        for operand in facts.carried:
            before.setdefault(operand, []).append(point)
    ends = (p for p, f in points.items() if not f.constant and not f.zero_mean and p in seen)
    weights = (p for p, f in points.items() if f.constant and f.opaque)
    return _all_before([*ends, *weights], before)


def _all_before(ends: Iterable[Point], before: Mapping[Point, Iterable[Point]]) -> frozenset[Point]:
    return frozenset(reached(ends, lambda point: before.get(point, ())))


@dataclass(frozen=True, slots=True)
class Demand:
    """A LayerNorm that could become an RMSNorm, and the picoseconds that this saves and takes.

    ``operators``: how many operators more a session executes for it, for which a fold has to save
    more than ``margin_ps``.
    """

    site: NormSite
    gain_ps: int
    spent_ps: int = 0
    operators: int = 0
    margin_ps: int = 0

    @property
    def pays(self) -> bool:
        """Whether the fold saves more than it takes."""
        return self.gain_ps - self.spent_ps > (self.margin_ps if self.operators else 0)


def cheapest_plan(
    transfers: ModelTransfers,
    demands: Sequence[Demand],
    costs: Costs,
    *,
    allow_split_bytes: int,
    overflowing: Collection[str] = (),
    bare: Sequence[BareCentring] = (),
) -> CentringPlan:
    """Return the cheapest plan; weights above ``allow_split_bytes`` are never stored twice.

    ``overflowing`` are references of weights that are not centred, in the file or at run time.
    """
    view = transfers.view
    sites = [demand.site for demand in demands]
    graph = walk_back(transfers, [*sites, *bare], overflowing=overflowing)
    prices = _Prices(view, demands, costs, allow_split_bytes)
    gains = [(Point(d.site.input, d.site.fiber), d.gain_ps - d.spent_ps) for d in demands]
    alone = [(Point(each.input, each.fiber), prices.of_centring(each)) for each in bare]
    cut = solve(graph, gains, prices.of_copy, alone)
    plan = _read_cut(view, graph, demands, bare, cut, prices)
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
        bare=bare,
    )


def _parts(view: ModelInfo, cut: CentringCut) -> tuple[tuple[str, Fiber], ...]:
    """Return the values whose parts are centered, joined as far as possible."""
    found: dict[str, list[Fiber]] = {}
    for point in cut.moved:
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
        self._of_copies: dict[Point, int | None] = {}
        self._insertion = cache(self._of_insertion)  # the values of a stream have one shape

    def of_copy(self, point: Point, facts: PointFacts) -> int | None:
        """Return the price in picoseconds, or None if no copy may or can be made."""
        if point not in self._of_copies:
            self._of_copies[point] = self._of_copy(point, facts)
        return self._of_copies[point]

    def _of_copy(self, point: Point, facts: PointFacts) -> int | None:
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
        return self._insertion(shape, elements(tuple(sizes[axis] for axis in fiber.axes)))

    def _of_insertion(self, shape: Shape, size: int) -> int:
        return self._costs.centred(work_beside(shape, size, self._of_norms, self._largest))

    def of_centring(self, bare: BareCentring) -> int:
        """Return what a subtraction of a mean takes that the model came with."""
        return max(1, self._costs.centred(work(self._view.shape(bare.input), bare.size)))

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
    bare: Sequence[BareCentring],
    cut: CentringCut,
    prices: _Prices,
) -> CentringPlan:
    folds: list[Fold] = []
    refusals: list[tuple[str, Refusal]] = []
    norms_of: dict[Point, list[str]] = {}
    gain = cost = added = operators = 0
    claimed: set[Point] = set()
    reasons = cache(lambda: Reasons(view, graph, cut, prices.of_copy))  # most plans need none
    for demand in demands:
        site = demand.site
        point = Point(site.input, site.fiber)
        if point not in cut.at_hand:
            refusals.append((view.ref(site.output), reasons().of(point)))
            continue
        gain += demand.gain_ps - demand.spent_ps
        added += demand.spent_ps
        operators += demand.operators
        writers = _writers(view, graph, cut, point, claimed)
        folds.append(Fold(site.name, view.ref(site.output), writers))
        norms_of.setdefault(point, []).append(view.ref(site.output))
    centrings: list[Fold] = []
    for each in bare:
        point = Point(each.input, each.fiber)
        if point in cut.centred:
            writers = _writers(view, graph, cut, point, claimed)
            centrings.append(Fold(each.name, view.ref(each.output), writers))
            gain += prices.of_centring(each)
        else:
            refusals.append((view.ref(each.output), reasons().of(point, dear="")))
    weights: list[WeightCentring] = []
    insertions: list[Insertion] = []
    for point, facts in graph.items():
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
        centrings=tuple(centrings),
    )


def _writers(
    view: ModelInfo, graph: ZeroMeanGraph, cut: CentringCut, start: Point, claimed: set[Point]
) -> tuple[str, ...]:
    """Return the weights centred for ``start`` that are not yet claimed, and claim them."""
    writers, queue = [], deque([start])
    while queue:
        point = queue.popleft()
        if point in claimed or graph[point].zero_mean:
            continue
        claimed.add(point)
        if graph[point].constant:
            writers.append(view.ref(point.value))
        elif point in cut.centred:
            queue.extend(graph[point].carried)
    return tuple(writers)


def _readers_of_copy(
    view: ModelInfo, graph: ZeroMeanGraph, cut: CentringCut, point: Point
) -> tuple[ReaderRef, ...]:
    """Return the node inputs that must read the centered copy: inputs of centered carriers."""
    readers = set()
    for other in cut.centred:
        node, facts = other.value.producer(), graph[other]
        if node is None:
            continue
        for index, operand in zip(facts.positions, facts.carried, strict=True):
            if operand == point:
                first = next(output for output in node.outputs if output.name)
                readers.add(ReaderRef(view.ref(first), index))
    return tuple(sorted(readers))
