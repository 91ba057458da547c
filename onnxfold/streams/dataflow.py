"""The backward walk, from every norm to all values whose centering could serve it.

The result, a :class:`ZeroMeanGraph`, records for each point (value, fiber) its dependencies and the
response of its readers to a shift. It decides nothing.

Source: CBWC, section on the zero-mean graph and Algorithm 1, made exact (affine parts, readers).
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import FLOATS, ModelInfo, Reader
from onnxfold.norms import CENTRINGS, NORMS
from onnxfold.norms.site import BareCentring, NormSite
from onnxfold.operators.families.transfer import ZeroMean, refuse_value
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import (
    EXACT,
    TRANSFERS,
    Assumptions,
    ModelTransfers,
    Point,
)
from onnxfold.streams.obstacles import ENDS
from onnxfold.weights.narrow import refuse_narrow


@dataclass(frozen=True, slots=True)
class PointFacts:
    """Facts about a point.

    ``constant``: the value is a weight. ``zero_mean``: its mean along the fiber is already 0.
    ``opaque``: why its producers cannot center it. ``carried``: the points that must be centered
    with it, which its producer reads at ``positions``. ``siblings``: the other outputs of its
    producer, which move with it. ``carries_to``: the points that move when it moves. ``exact``: the
    readers that need the original value.
    """

    constant: bool = False
    zero_mean: bool = False
    opaque: Refusal | None = None
    carried: tuple[Point, ...] = ()
    positions: tuple[int, ...] = ()
    siblings: tuple[Point, ...] = ()
    carries_to: tuple[Point, ...] = ()
    exact: tuple[Refusal, ...] = ()


ZeroMeanGraph: TypeAlias = Mapping[Point, PointFacts]
"""All points that the norms of a model reach."""


def walk_back(
    transfers: ModelTransfers,
    demands: Iterable[NormSite | BareCentring],
    assumptions: Assumptions = EXACT,
    overflowing: Collection[str] = (),
) -> ZeroMeanGraph:
    """Walk back from ``demands``, which subtract a mean; unknown operators end the walk.

    ``overflowing`` are references of weights that cannot be centered, for any reader. The same walk
    is made once.
    """
    start = tuple(Point(site.input, site.fiber) for site in demands)
    key = start, assumptions, frozenset(overflowing)
    if key not in transfers.walks:
        walk = _Walk(transfers, assumptions, overflowing)
        walk.run(start)
        transfers.walks[key] = _with_zero_means(walk.facts)
    found: ZeroMeanGraph = transfers.walks[key]
    return found


class _Walk:
    """Alternates between following points back and examining the readers of the points found.

    ``facts`` are in the order in which the points were found.
    """

    def __init__(
        self, transfers: ModelTransfers, assumptions: Assumptions, overflowing: Collection[str]
    ):
        self._view = transfers.view
        self._overflowing = overflowing
        self._transfers = transfers
        self._assumptions = assumptions
        self.facts: dict[Point, PointFacts] = {}
        # The points that depend on a point, and through which input: a reader then carries to them.
        self._asked_by: dict[tuple[Point, Reader], dict[Point, None]] = {}

    def run(self, start: Iterable[Point]) -> None:
        """Find every point that ``start`` can use, and every point that moves with them."""
        fresh = self._pull_all(start)
        while fresh and self._assumptions.asks_readers:
            reached: list[Point] = []
            for point in fresh:
                if not self.facts[point].zero_mean:
                    carries_to, exact = self._look_at_readers(point)
                    reached += carries_to
                    self.facts[point] = replace(
                        self.facts[point], carries_to=carries_to, exact=exact
                    )
            fresh = self._pull_all(reached)

    def _pull_all(self, start: Iterable[Point]) -> list[Point]:
        queue, fresh = deque(start), []
        while queue:
            point = queue.popleft()
            if point not in self.facts:
                self.facts[point] = producer = self._pull(point)
                fresh.append(point)
                queue.extend(producer.carried)
                queue.extend(producer.siblings)
        return fresh

    def _pull(self, point: Point) -> PointFacts:
        if self._overflows(point.value):
            sentence = "has inf or NaN, or its type cannot represent its centered values"
            refusal = refuse_value(RefusalCode.NON_FINITE_WEIGHT, point.value, sentence)
            return PointFacts(opaque=refusal)
        if self._view.tensor(point.value) is not None:
            return self._pull_constant(point.value)
        origin = self._transfers.backward(point, self._assumptions)
        if isinstance(origin, ZeroMean):
            return PointFacts(zero_mean=True)
        if isinstance(origin, Refusal):
            return PointFacts(opaque=origin)
        node = point.value.producer()
        carried = []
        for index, fiber in origin.inputs:
            operand = node.inputs[index] if node is not None else None
            if node is None or operand is None:
                raise InvariantError(f"the law of '{point.value.name}' carries a missing input")
            carried.append(Point(operand, fiber))
            reader = Reader(node, index)
            self._asked_by.setdefault((carried[-1], reader), {})[point] = None
        siblings = tuple(
            Point(output, point.fiber)
            for output in (node.outputs if node is not None and not origin.alone else ())
            if output is not point.value and (output.uses() or output.is_graph_output())
        )
        positions = tuple(index for index, _ in origin.inputs)
        return PointFacts(carried=tuple(carried), positions=positions, siblings=siblings)

    def _pull_constant(self, value: ir.Value) -> PointFacts:
        tensor = self._view.tensor(value)
        narrow = refuse_narrow(self._view, value)
        if narrow is not None:
            return PointFacts(opaque=narrow)
        if tensor is not None and tensor.dtype in FLOATS:
            return PointFacts(constant=True)
        sentence = f"holds {tensor.dtype if tensor else 'no tensor'}, not floats"
        return PointFacts(opaque=refuse_value(RefusalCode.UNSUPPORTED_TYPE, value, sentence))

    def _overflows(self, value: ir.Value) -> bool:
        """Whether the centered values of a value are surely not finite; small constants are read.

        A constant may overflow only downstream: -1e300 after a Cast to
        float32.
        """
        if self._overflowing and self._view.ref(value) in self._overflowing:
            return True
        array = self._view.array(value) if value.dtype in FLOATS else None
        return array is not None and not np.all(np.isfinite(array.astype(np.float64)))

    def _look_at_readers(self, point: Point) -> tuple[tuple[Point, ...], tuple[Refusal, ...]]:
        carries_to: dict[Point, None] = {}
        exact: list[Refusal] = []
        if self._view.is_output(point.value):
            sentence = "is an output of its graph"
            exact.append(refuse_value(RefusalCode.GRAPH_OUTPUT, point.value, sentence))
        for reader in self._view.readers(point.value):
            response = self._transfers.forward(point, reader)
            if response == ():
                continue
            asked_by = self._asked_by.get((point, reader))
            if asked_by:
                carries_to.update(asked_by)
            elif isinstance(response, Refusal):
                exact.append(response)
            else:
                carries_to.update(dict.fromkeys(response))
        return tuple(carries_to), tuple(exact)


def _with_zero_means(points: dict[Point, PointFacts]) -> dict[Point, PointFacts]:
    """Mark the points whose inputs already all have mean 0."""
    waiting: dict[Point, int] = {}
    dependants: dict[Point, list[Point]] = {}
    ready = deque(point for point, facts in points.items() if facts.zero_mean)
    for point, facts in points.items():
        if facts.carried and not facts.zero_mean:
            distinct = set(facts.carried)
            waiting[point] = len(distinct)
            for operand in distinct:
                dependants.setdefault(operand, []).append(point)
    result = dict(points)
    while ready:
        for point in dependants.get(ready.popleft(), ()):
            waiting[point] -= 1
            if waiting[point] == 0:
                result[point] = PointFacts(zero_mean=True)
                ready.append(point)
    return result


@ENDS.found_by
def _ends(view: ModelInfo) -> dict[ir.Value, list[Refusal]]:
    asked = [site for site in NORMS.of(view) if site.subtracts_mean and site.size]
    graph = walk_back(TRANSFERS.of(view), [*asked, *CENTRINGS.of(view)])
    found: defaultdict[ir.Value, list[Refusal]] = defaultdict(list)
    for point, facts in graph.items():
        if facts.opaque is not None:
            found[point.value].append(facts.opaque)
    return dict(found)
