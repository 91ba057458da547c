"""A stream: all points that move with a norm's input, and whether each can omit a channel.

    x = E v,  v = x[:-1],  x_d = -(v_1 + ... + v_(d-1))        for mean(x) = 0

An operator that treats every channel equally commutes with omitting one, f(x1, x2)[:-1] = f(v1,
v2), and a linear layer A u + b computes v without the last row of A and of b.

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3.2.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.graph import FLOATS, Fiber, ModelInfo, Reader, node_label, operator
from onnxfold.graph.operands import known_producer
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.parts import sliced_axes
from onnxfold.operators.families.rules import keeps_order
from onnxfold.operators.families.transfer import Backward, Carried, ZeroMean
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.passes.stream_forms.shapes import takes_shape
from onnxfold.passes.stream_forms.stream_sizes import SizeReader, size_readers
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import Equivariant, ModelTransfers, Point
from onnxfold.weights.centre import is_centred_weight
from onnxfold.weights.narrow import refuse_narrow


@dataclass(slots=True)
class Stream:
    """The points of a stream in the order found; ``entries`` keep their last channel.

    norms write ``starts`` without it.
    """

    weights: list[Point] = field(default_factory=list)
    values: list[Point] = field(default_factory=list)
    entries: list[Point] = field(default_factory=list)
    starts: list[Point] = field(default_factory=list)
    readers: dict[Point, list[Reader]] = field(default_factory=dict)
    norms: set[ir.Value] = field(default_factory=set)

    @property
    def channels(self) -> dict[ir.Value, int]:
        """The axis along which each value loses an element."""
        every = (*self.weights, *self.values, *self.entries, *self.starts)
        return {point.value: point.fiber.blocks[0].axis for point in every}


def stream_of(
    info: ModelInfo,
    transfers: ModelTransfers,
    start: Point,
    norms: Mapping[ir.Node, NormSite | None],
) -> Stream | Refusal:
    """Return the stream of ``start``, or the first reason why it must keep a channel.

    ``norms``: the nodes of all norms, including those that could be CRMSNorms.
    """
    walk = StreamWalk(info, transfers, norms)
    return walk.run(start) or walk.stream


class StreamWalk:
    """Walk over a stream.

    Subclasses decide what may be cut, where it enters and which norms end it.
    """

    def __init__(
        self, info: ModelInfo, transfers: ModelTransfers, norms: Mapping[ir.Node, NormSite | None]
    ):
        self.info, self._transfers, self._norms = info, transfers, norms
        self._waiting: deque[Point] = deque()
        self._seen: dict[ir.Value, Point] = {}
        self._shapes: list[tuple[Point, ir.Node]] = []
        self.stream = Stream()

    def run(self, start: Point) -> Refusal | None:
        why = self._visit(start)
        while why is None and self._waiting:
            point = self._waiting.popleft()
            why = self.backward(point) or self._forward(point)
        return why or self._refuse_sizes()

    def _refuse_sizes(self) -> Refusal | None:
        """Refuse a fixed number of channels that is not the stream's own, or return None."""
        axes = self.stream.channels
        for point, shape in self._shapes:
            position = point.fiber.blocks[0].axis - _start_of(self.info, shape)
            for told in size_readers(self.info, shape.outputs[0], position):
                if told is None or not self._is_own(told, axes):
                    return _reads_in_full(point, shape)
        return None

    def _is_own(self, told: SizeReader, axes: Mapping[ir.Value, int]) -> bool:
        """Whether a size is the number of channels of a value of the stream."""
        node, index = told.reader.node, told.reader.index
        if not takes_shape(node) or index != 1:
            return False
        rank, length = self.info.rank(node.outputs[0]), self.info.dim(node.inputs[1], 0)
        if rank is None or not isinstance(length, int):
            return False
        return axes.get(node.outputs[0]) == told.position + rank - length

    def _visit(self, point: Point) -> Refusal | None:
        name = point.value.name or ""
        known = self._seen.get(point.value)
        if known is not None:
            if known == point:
                return None
            return _broken(name, "is normalized along two fibers")
        blocks = point.fiber.blocks
        if len(blocks) != 1 or not point.fiber.whole or blocks[0].size < 2:
            return _broken(name, f"has its channels along {point.fiber}, not along a whole axis")
        self._seen[point.value] = point
        self._waiting.append(point)
        return None

    def backward(self, point: Point) -> Refusal | None:
        """Add the operands of a point to the stream, or return why that is impossible."""
        if self.info.tensor(point.value) is not None:
            self.stream.weights.append(point)
            return self.refuse_weight(point)
        origin = self._transfers.backward(point)
        if self.enters(point, origin):
            self.stream.entries.append(point)
            return None
        if not isinstance(origin, Carried):
            return origin if isinstance(origin, Refusal) else _unknown(known_producer(point.value))
        self.stream.values.append(point)
        return self._through(point, origin)

    def enters(self, point: Point, origin: Backward) -> bool:
        """Whether the stream starts with the operands of this value."""
        del point
        return isinstance(origin, ZeroMean)

    def _through(self, point: Point, origin: Carried) -> Refusal | None:
        node = known_producer(point.value)
        if (
            node.domain
            or not facets.keeps_channels_apart(row_of(node))
            or not keeps_order(self.info, node, point.fiber)
            or _names_sizes(self.info, node, point.fiber)
        ):
            return _unknown(node)
        for output in node.outputs:
            if output is not point.value and output.uses():
                why = self._visit(Point(output, point.fiber))
                if why is not None:
                    return why
        for index, fiber in origin.inputs:
            operand = node.inputs[index]
            why = None if operand is None else self._visit(Point(operand, fiber))
            if why is not None:
                return why
        return None

    def refuse_weight(self, point: Point) -> Refusal | None:
        """Return why a weight cannot omit a channel, or None."""
        tensor, name = self.info.tensor(point.value), point.value.name or ""
        if tensor is None or tensor.dtype not in FLOATS:
            sentence = f"'{name}' does not contain floats"
            return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (name,))
        if not is_centred_weight(tensor, point.fiber):
            sentence = f"weight '{name}' has a mean along {point.fiber}"
            return Refusal(RefusalCode.HAS_MEAN, sentence, (name,))
        return refuse_narrow(self.info, point.value)

    def _forward(self, point: Point) -> Refusal | None:
        name = point.value.name or ""
        entry = point in self.stream.entries
        if self.info.is_output(point.value) and not entry:
            sentence = f"'{name}' is an output of its graph"
            return Refusal(RefusalCode.GRAPH_OUTPUT, sentence, (name,))
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

    def read(self, point: Point, reader: Reader) -> Refusal | None:
        """Add a reader to the stream, or return why it needs every channel."""
        if reader.node in self._norms:
            site = self._norms[reader.node]
            if site is not None and self.ends(point, site):
                self.stream.norms.add(site.output)
                return None
            return _unknown(reader.node)
        if facets.reads_type_alone(row_of(reader.node), reader.index):
            return None
        if reader.node.op_type == "Shape" and not reader.node.domain:
            self._shapes.append((point, reader.node))
            return None
        response = self._transfers.forward(point, reader)
        if not isinstance(response, Equivariant):
            shared = self.info.tensor(point.value) is not None
            code = RefusalCode.SHARED_WEIGHT if shared else RefusalCode.EXACT_READER
            return _reads_in_full(point, reader.node, code)
        for moved in response.points:
            why = self._visit(moved)
            if why is not None:
                return why
        return None


def _reads_in_full(
    point: Point, node: ir.Node, code: RefusalCode = RefusalCode.EXACT_READER
) -> Refusal:
    label = node_label(node)
    sentence = f"{operator(node)} '{label}' reads '{point.value.name}' in full"
    return Refusal(code, sentence, (label,))


def _start_of(info: ModelInfo, shape: ir.Node) -> int:
    """Return the axis of the first size that a Shape node reads."""
    start = shape.attributes.get_int("start", 0)
    return start + (info.rank(shape.inputs[0]) or 0) if start < 0 else start


def _broken(name: str, sentence: str) -> Refusal:
    return Refusal(RefusalCode.FIBER_BROKEN, f"'{name}' {sentence}", (name,))


def _names_sizes(info: ModelInfo, node: ir.Node, fiber: Fiber) -> bool:
    """Whether a Slice has explicit bounds along the channels, which would change."""
    if row_of(node).family is not Family.SLICE:
        return False
    axes = sliced_axes(info, node)
    return axes is None or not set(axes).isdisjoint(fiber.axes)


def _unknown(node: ir.Node) -> Refusal:
    label = node_label(node)
    sentence = f"{operator(node)} '{label}' has no rule for a stream without its last channel"
    return Refusal(RefusalCode.UNKNOWN_OP, sentence, (label,))
