"""From the zero-mean graph to a plan: price everything, cut, read the cut, give reasons."""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from onnxfold.graph import FLOATS, Fiber, ModelInfo, node_label
from onnxfold.graph.reached import reached
from onnxfold.norms import NormKind, NormSite, find_norms
from onnxfold.options import Defer, Target, WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.dataflow import PointFacts, ZeroMeanGraph, walk_back
from onnxfold.passes.centring.fusions import refuse_fused
from onnxfold.passes.centring.model_transfers import Assumptions, Embeddings, ModelTransfers, Point
from onnxfold.passes.centring.network import CentringCut, free_points, solve
from onnxfold.passes.centring.plan import CentringPlan, Fold, Insertion, WeightCentring, joined
from onnxfold.passes.costs import Costs, costs_of, elements, elements_beside
from onnxfold.passes.lower.stripped import refuse_stripped
from onnxfold.passes.lower.targets import TargetLowering
from onnxfold.passes.lower.turned import turned_norms
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.centre import is_centred_weight


@dataclass(frozen=True, slots=True)
class Demand:
    """A LayerNorm that could become an RMSNorm, and the picoseconds per row that this saves."""

    site: NormSite
    gain_ps: int


@dataclass(frozen=True, slots=True)
class CentringDecision:
    """The plan, why each other norm does not fold, and the counts of the paper's rules.

    ``remaining`` are all norms by reference, ``in_place`` those that stay and become one operator,
    ``left`` those that could fold and of which runtimes make more as they stand.
    """

    plan: CentringPlan = field(default_factory=CentringPlan)
    refusals: tuple[tuple[str, Refusal], ...] = ()
    algorithm1: int = 0
    algorithm1_embed_centred: int = 0
    remaining: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether no norm folds."""
        return self.plan.empty

    def left_out(self, reason: str) -> "CentringDecision":
        """Return the decision to fold nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        kept = tuple((fold.output, why) for fold in self.plan.folds)
        refusals = (*self.refusals, *kept)
        plan = CentringPlan(refusals=(*self.plan.refusals, *kept))
        return replace(self, plan=plan, refusals=refusals, left=frozenset())


def decide(info: ModelInfo, settings: Settings) -> CentringDecision:
    """Return the cheapest plan, and why the norms that it leaves do not fold."""
    sites = find_norms(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    demands, refused = _demands(info, sites, lowering, settings)
    transfers = ModelTransfers(info, sites, of_parts=True)
    plan, left = _worthwhile(transfers, demands, lowering, settings, scaled=False)
    layer_norms = [site for site in sites if site.kind is NormKind.LAYER_NORM]
    in_place = (site for site in sites if lowering.calls_in_place(site))
    whole = transfers.without_parts()  # the paper centres whole weights
    return CentringDecision(
        plan,
        tuple({**refused, **dict(plan.refusals), **left}.items()),
        count_foldable(
            whole, layer_norms, Assumptions(True, Embeddings.OPAQUE, asks_readers=False)
        ),
        count_foldable(
            whole, layer_norms, Assumptions(True, Embeddings.CENTRED, asks_readers=False)
        ),
        frozenset(info.ref(site.output) for site in sites),
        frozenset(info.ref(site.output) for site in in_place),
        frozenset(left),
    )


def plan_of(info: ModelInfo, settings: Settings) -> CentringPlan:
    """Return the cheapest plan alone, as where every norm gets a scale that stays."""
    sites = find_norms(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    demands, _ = _demands(info, sites, lowering, settings)
    transfers = ModelTransfers(info, sites, of_parts=True)
    return _worthwhile(transfers, demands, lowering, settings, scaled=True)[0]


def _worthwhile(
    transfers: ModelTransfers,
    demands: Sequence[Demand],
    lowering: TargetLowering,
    settings: Settings,
    *,
    scaled: bool,
) -> tuple[CentringPlan, dict[str, Refusal]]:
    """Return the plan without the norms of which runtimes make more, and why these stay."""
    plan = _cheapest(transfers, demands, settings)
    ref = transfers.view.ref
    folded = {fold.output for fold in plan.folds}
    sites = [demand.site for demand in demands if ref(demand.site.output) in folded]
    left = _left(transfers.view, sites, lowering, settings, scaled=scaled)
    if left:
        others = [demand for demand in demands if ref(demand.site.output) not in left]
        plan = _cheapest(transfers, others, settings)
    return plan, left


def _cheapest(
    transfers: ModelTransfers, demands: Sequence[Demand], settings: Settings
) -> CentringPlan:
    return cheapest_plan(
        transfers,
        demands,
        costs_of(settings.target),
        allow_split_bytes=settings.allow_split,
        overflowing=settings.overflowing,
    )


def _demands(
    info: ModelInfo, sites: Sequence[NormSite], lowering: TargetLowering, settings: Settings
) -> tuple[list[Demand], dict[str, Refusal]]:
    """Return the norms that may fold with what that saves, and why the others may not."""
    refused: dict[str, Refusal] = {}
    demands: list[Demand] = []
    costs = costs_of(settings.target)
    sharing = Counter(value for site in sites for value in site.centred)
    for site in sites:
        refusal = _refuse_early(info, site, lowering, settings)
        if refusal is not None:
            refused[info.ref(site.output)] = refusal
            continue
        count = elements(info.shape(site.input))
        gain = costs.gain(count, site.beta is not None)
        if settings.convert_to is not None:  # a centring for one norm is a LayerNorm in two parts
            gain = count * (costs.centring - 1)
        shared = max((sharing[value] for value in site.centred), default=1)
        if shared > 1:  # together they compute x - mean(x) once, as a centring does
            gain = min(gain, count * costs.centring // shared)
        demands.append(Demand(site, gain))
    return demands, refused


def _left(
    info: ModelInfo,
    sites: Sequence[NormSite],
    lowering: TargetLowering,
    settings: Settings,
    *,
    scaled: bool,
) -> dict[str, Refusal]:
    """Return those of the norms of which runtimes make more as they stand, and how."""
    if settings.convert_to is not None:
        return {}  # it asks for the form, whatever it costs
    left = refuse_fused(info, sites, settings.target)
    spelled = [site for site in sites if site.output not in left and lowering.spells_rms(site)]
    by_default = settings.norm_form is WrittenForm.AUTO and settings.defer is not Defer.ALL
    if settings.target is Target.ONNX and by_default:
        left |= refuse_stripped(info, spelled, scaled=scaled)
    spelled = [site for site in spelled if site.output not in left]
    turned = turned_norms(info, {site.output for site in spelled})
    left |= {site.output: _stays_turned(site) for site in spelled if site.output in turned}
    return {info.ref(output): refusal for output, refusal in left.items()}


def _stays_turned(site: NormSite) -> Refusal:
    sentence = f"norm '{site.name}' stands between Transposes, which runtimes move through all but"
    label = (node_label(site.nodes[-1]),)
    return Refusal(RefusalCode.NO_CHEAPER_FORM, f"{sentence} one operator", label)


def _refuse_early(
    info: ModelInfo, site: NormSite, lowering: TargetLowering, settings: Settings
) -> Refusal | None:
    if site.refusal is not None:
        return site.refusal
    if site.kind is NormKind.RMS_NORM:
        return Refusal(RefusalCode.ALREADY_RMS, "is an RMSNorm already", ())
    if not site.subtracts_mean:
        sentence = f"{site.kind.value} does not subtract the mean"
        return Refusal(RefusalCode.NOT_CENTRED_NORM, sentence, ())
    if settings.excludes(site.name):
        return Refusal(RefusalCode.EXCLUDED, "excluded by name", ())
    return settings.refuse_unproved(info.ref(site.output)) or lowering.refuse_rms(site)


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
    gains = [(Point(d.site.input, d.site.fiber), d.gain_ps) for d in demands]
    cut = solve(graph, gains, prices.of_copy)
    plan = _read_cut(view, graph, demands, cut, prices)
    weights = joined(plan.weights)
    if weights is not None:
        return replace(plan, weights=weights, parts=_parts(view, cut))
    return cheapest_plan(
        transfers.without_parts(),
        demands,
        costs,
        allow_split_bytes=allow_split_bytes,
        overflowing=overflowing,
    )


def _parts(view: ModelInfo, cut: CentringCut) -> tuple[tuple[str, Fiber], ...]:
    """Return the values of which parts are centred, with as many of these together as join."""
    found: dict[str, Fiber] = {}
    for point in cut.centred:
        if point.fiber.part is not None and view.tensor(point.value) is None:
            ref = view.ref(point.value)
            fiber = found.get(ref, point.fiber)
            found[ref] = fiber.joined(point.fiber) or fiber
    return tuple(sorted(found.items(), key=lambda pair: pair[0]))


def count_foldable(
    transfers: ModelTransfers, sites: Sequence[NormSite], assumptions: Assumptions
) -> int:
    """Count the norms that fold under a paper's rules: weights may be split, no centring added."""
    free = free_points(walk_back(transfers, sites, assumptions))
    return sum(Point(site.input, site.fiber) in free for site in sites)


class _Prices:
    """What a centred copy of a point costs; as large as the largest norm where no norm tells."""

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
        """Return the price in picoseconds, or None where no copy may or can be made."""
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
            return None  # only a norm's scale tells the size, so no proof could follow the mean
        return elements_beside(shape, self._of_norms, self._largest) * self._costs.centring

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
    return CentringPlan(
        tuple(folds), tuple(weights), tuple(insertions), tuple(refusals), gain, cost
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
            RefusalCode.NOT_WORTH, "centring its input would cost more than it saves", ()
        )
    sentence = f"{obstacle.sentence}; an inserted centring would cost more than it saves"
    return Refusal(obstacle.code, sentence, obstacle.nodes)
