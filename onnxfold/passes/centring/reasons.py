"""Why a norm keeps its mean: the nearest obstacle on the way to its input, and what would help."""

from collections.abc import Callable, Iterable, Mapping

from onnxfold.graph import ModelInfo
from onnxfold.graph.traversal import reached
from onnxfold.passes.centring.network import CentringCut
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.dataflow import PointFacts, ZeroMeanGraph
from onnxfold.streams.model_transfers import Point


class Reasons:
    """The obstacles of one graph, for all values that are not at hand centred."""

    def __init__(
        self,
        view: ModelInfo,
        graph: ZeroMeanGraph,
        cut: CentringCut,
        copy_price: Callable[[Point, PointFacts], int | None],
    ):
        self._view, self._points, self._moved = view, graph.points, cut.moved
        weights = [point for point, facts in graph.points.items() if facts.constant]
        split = (p for p in weights if copy_price(p, graph.points[p]) is not None)
        self._split = frozenset(split)
        self._seen = _seen(graph.points)
        self._hopeless = _hopeless(graph.points, self._seen)

    def of(self, start: Point) -> Refusal:
        """Return the nearest obstacle to centring a value for free, and whether it moves.

        The other readers of a weight that may be stored twice are named only where nothing else is.
        """
        moved = "; it stays, and does not see that its input moves" if start in self._moved else ""
        obstacle = self._nearest(start, self._split)
        needed = "" if obstacle is None or start in self._hopeless else self._needed(start)
        obstacle = obstacle or self._nearest(start, frozenset())
        if obstacle is None:
            sentence = f"centering its input would cost more than it saves{moved}"
            return Refusal(RefusalCode.NOT_WORTH, sentence, ())
        dear = "an inserted centering would cost more than it saves"
        return Refusal(obstacle.code, f"{obstacle.sentence}{needed}{moved}; {dear}", obstacle.nodes)

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
