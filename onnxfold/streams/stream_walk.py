"""A stream: all points that move with a norm's input, if all can change together.

The walk continues from one point to everything that must change in the same way: upstream to its
operands, down to weights, and downstream to its readers, up to the norms that ignore the change.
Subclasses define the change: which producers, weights and readers can take it, and where it ends.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, Reader
from onnxfold.graph.operands import known_producer
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.transfer import Backward, Carried, refuse, refuse_value
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.weights.narrow import refuse_narrow


@dataclass(slots=True)
class Stream:
    """The points of a stream in the order found; ``entries`` stay as they are.

    ``starts`` are given by norms as the rest of the stream needs them.
    """

    weights: list[Point] = field(default_factory=list)
    values: list[Point] = field(default_factory=list)
    entries: list[Point] = field(default_factory=list)
    starts: list[Point] = field(default_factory=list)
    readers: dict[Point, list[Reader]] = field(default_factory=dict)
    norms: set[ir.Value] = field(default_factory=set)

    @property
    def channels(self) -> dict[ir.Value, int]:
        """The axis of the channels of each value."""
        every = (*self.weights, *self.values, *self.entries, *self.starts)
        return {point.value: point.fiber.blocks[0].axis for point in every}


class StreamWalk:
    """Finds a stream; ``norms``: the nodes of all norms, with those that may end it.

    ``change``: what is done to the stream, in words, for refusals.
    """

    change = "that is changed"

    def __init__(
        self, info: ModelInfo, transfers: ModelTransfers, norms: Mapping[ir.Node, NormSite | None]
    ):
        self.info, self.transfers, self.norms = info, transfers, norms
        self._waiting: deque[Point] = deque()
        self._seen: dict[ir.Value, Point] = {}
        self.stream = Stream()

    def run(self, start: Point) -> Refusal | None:
        """Find the stream of a point, or say which part of it cannot be changed."""
        return self.visit(start) or self.go_on()

    def go_on(self) -> Refusal | None:
        """Follow the points that were visited, and all that they lead to."""
        why = None
        while why is None and self._waiting:
            point = self._waiting.popleft()
            why = self.backward(point) or self.forward(point)
        return why

    def holds(self, value: ir.Value | None) -> bool:
        """Whether a value is of the stream, or enters it."""
        return value in self._seen

    def visit(self, point: Point) -> Refusal | None:
        """Take a point into the stream, or say why it cannot be of it."""
        known = self._seen.get(point.value)
        if known is not None:
            return None if known == point else self.refuse_second(known)
        why = self.refuse_place(point)
        if why is None:
            self._seen[point.value] = point
            self._waiting.append(point)
        return why

    def refuse_second(self, known: Point) -> Refusal | None:
        """Say why a value that is known along one fiber is not of the stream along another."""
        return broken_at(known.value, "is normalized along two fibers")

    def refuse_place(self, point: Point) -> Refusal | None:
        """Say why a change along this fiber is not possible."""
        blocks = point.fiber.blocks
        if len(blocks) != 1 or not point.fiber.whole or blocks[0].size < 2:
            return broken_at(
                point.value, f"has its channels along {point.fiber}, not along a whole axis"
            )
        return None

    def backward(self, point: Point) -> Refusal | None:
        """Take what a point is computed from into the stream, or say why it cannot be."""
        if self.info.tensor(point.value) is not None:
            self.stream.weights.append(point)
            return self.refuse_weight(point)
        origin = self.transfers.backward(point)
        if self.enters(point, origin):
            self.stream.entries.append(point)
            return None
        if not isinstance(origin, Carried):
            return self.refuse_origin(point, origin)
        self.stream.values.append(point)
        return self.through(point, origin)

    def enters(self, point: Point, origin: Backward) -> bool:
        """Whether the stream starts with what this value is computed from."""
        del point, origin
        return False

    def refuse_origin(self, point: Point, origin: Backward) -> Refusal:
        """Say why what computes a point cannot take the change."""
        return origin if isinstance(origin, Refusal) else self.unknown(known_producer(point.value))

    def through(self, point: Point, origin: Carried) -> Refusal | None:
        """Take what a node carries, and its other outputs, into the stream."""
        node = known_producer(point.value)
        why = self.refuse_carrier(node, point)
        if why is not None:
            return why
        for output in node.outputs:
            if output.uses():
                why = self.visit(Point(output, point.fiber))
                if why is not None:
                    return why
        for index, fiber in origin.inputs:
            operand = node.inputs[index]
            why = None if operand is None else self.visit(Point(operand, fiber))
            if why is not None:
                return why
        return None

    def refuse_carrier(self, node: ir.Node, point: Point) -> Refusal | None:
        """Say why a node does not pass the change on, though it passes means on."""
        raise NotImplementedError

    def refuse_weight(self, point: Point) -> Refusal | None:
        """Say why a weight cannot be changed: one of floats can, in the type that it has."""
        tensor, code = self.info.tensor(point.value), RefusalCode.UNSUPPORTED_TYPE
        if tensor is None or tensor.dtype not in FLOATS:
            return refuse_value(code, point.value, "does not contain floats")
        return refuse_narrow(self.info, point.value)

    def forward(self, point: Point) -> Refusal | None:
        """Take the readers of a point into the stream, or say which one cannot be."""
        entry = point in self.stream.entries
        if self.info.is_output(point.value) and not entry:
            return refuse_value(RefusalCode.GRAPH_OUTPUT, point.value, "is an output of its graph")
        inside = self.stream.readers.setdefault(point, [])
        for reader in self.info.readers(point.value):
            why = self.read(point, reader)
            if why is None:
                inside.append(reader)
            elif not entry:
                return why
        return None

    def ends(self, point: Point, site: NormSite) -> bool:
        """Whether a norm, one of whose nodes reads a point, normalizes it."""
        return site.input is point.value and site.fiber == point.fiber

    def end(self, point: Point, site: NormSite) -> Refusal | None:
        """Note a norm that ends the stream."""
        del point
        self.stream.norms.add(site.output)
        return None

    def read(self, point: Point, reader: Reader) -> Refusal | None:
        """Take a reader into the stream, or say why it must see the values as they are."""
        if reader.node in self.norms:
            site = self.norms[reader.node]
            if site is not None and self.ends(point, site):
                return self.end(point, site)
            return self.unknown(reader.node)
        if facets.reads_type_alone(row_of(reader.node), reader.index):
            return None
        response = self.transfers.forward(point, reader)
        if isinstance(response, Refusal) or not response:
            return self.refuse_reader(point, reader)
        for moved in response:
            why = self.visit(moved)
            if why is not None:
                return why
        return None

    def refuse_reader(self, point: Point, reader: Reader) -> Refusal:
        """Say that a reader must see the values as they are."""
        shared = self.info.tensor(point.value) is not None
        code = RefusalCode.SHARED_WEIGHT if shared else RefusalCode.EXACT_READER
        return refuse(code, reader.node, f"reads '{point.value.name}' in full")

    def unknown(self, node: ir.Node) -> Refusal:
        """Say that nothing is known of a node that would have to be of the stream."""
        return refuse(RefusalCode.UNKNOWN_OP, node, f"has no rule for a stream {self.change}")


def broken_at(value: ir.Value, sentence: str) -> Refusal:
    """Return the refusal for a value whose channels cannot be followed."""
    return refuse_value(RefusalCode.FIBER_BROKEN, value, sentence)


class BasisWalk(StreamWalk):
    """Finds a stream among the norms of a model; ``owners``: the norms that a node is part of."""

    def __init__(self, info: ModelInfo, transfers: ModelTransfers, sites: Sequence[NormSite]):
        super().__init__(info, transfers, {node: site for site in sites for node in site.nodes})
        self.owners: dict[ir.Node, list[NormSite]] = defaultdict(list)
        for site in sites:
            for node in site.nodes:
                self.owners[node].append(site)

    def norms_of(self, value: ir.Value, node: ir.Node) -> list[NormSite]:
        """Return the norms of a value that a node is part of."""
        return [site for site in self.owners.get(node, ()) if site.input is value]
