"""Streams without a channel: whether each point that a norm's input moves with can do without one.

    x = E v,  v = x[:-1],  x_d = -(v_1 + ... + v_(d-1))        for mean(x) = 0

An operator that treats every channel equally commutes with omitting one, f(x1, x2)[:-1] = f(v1,
v2), and a linear layer A u + b computes v without the last row of A and of b.

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3.2.

Sizes that a model reads from one tensor's shape and passes to another: Reshape(y, Shape(x)).

If both are of one stream, such a number of channels follows by itself when the stream changes.
"""

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Reader, operator
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.parts import sliced_axes
from onnxfold.operators.families.rules import keeps_order
from onnxfold.operators.families.transfer import Backward, ZeroMean
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.passes.stream_forms.shapes import takes_shape
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.streams.stream_walk import Stream, StreamWalk
from onnxfold.weights.edited import is_centred_weight


def follows(
    info: ModelInfo, shape: ir.Value | None, position: int, channels: Mapping[ir.Value, int]
) -> bool:
    """Whether an entry of a shape is the number of channels of a named value.

    ``channels``: the axis of each.
    """
    while shape is not None and (node := shape.producer()) is not None and not node.domain:
        if node.op_type == "Shape":
            source, start = node.inputs[0], node.attributes.get_int("start", 0)
            rank = info.rank(source) or 0
            axis = position + (start + rank if start < 0 else start)
            return source is not None and channels.get(source) == axis
        step = _before(info, node, position)
        if step is None:
            return False
        shape, position = step
    return False


def _before(info: ModelInfo, node: ir.Node, position: int) -> tuple[ir.Value | None, int] | None:
    """Return which operand, and which of its entries, is an entry of a result."""
    if facets.keeps_order(row_of(node)):
        return node.inputs[0], position
    if node.op_type == "Concat":
        for operand in node.inputs:
            length = info.dim(operand, 0)
            if not isinstance(length, int):
                return None
            if position < length:
                return operand, position
            position -= length
        return None
    taken = _taken(info, node)
    return None if taken is None or position >= len(taken) else (node.inputs[0], taken[position])


def size_readers(
    info: ModelInfo, value: ir.Value, position: int
) -> Iterator[tuple[Reader, int] | None]:
    """Yield the final readers of an entry of a vector, with its position there; None if unknown."""
    if info.is_output(value):
        yield None
    for reader in info.readers(value):
        node = reader.node
        row = row_of(node)
        passes = facets.keeps_order(row) or operator(node) in ("Concat", "Gather", "Slice")
        if not passes or (facets.keeps_order(row) and reader.index > 0):
            yield reader, position
            continue
        for following in _behind(info, reader, position):
            yield from (
                (None,) if following is None else size_readers(info, node.outputs[0], following)
            )


def _behind(info: ModelInfo, reader: Reader, position: int) -> tuple[int | None, ...]:
    """Return the entries of a result that an entry becomes; None if unknown."""
    node = reader.node
    if facets.keeps_order(row_of(node)):
        return (position,)
    if node.op_type == "Concat":
        lengths = [info.dim(operand, 0) for operand in node.inputs[: reader.index]]
        if not all(isinstance(length, int) for length in lengths):
            return (None,)
        return (position + sum(n for n in lengths if isinstance(n, int)),)
    taken = _taken(info, node) if reader.index == 0 else None
    if taken is None:
        return (None,)
    return tuple(place for place, entry in enumerate(taken) if entry == position)


def _taken(info: ModelInfo, node: ir.Node) -> list[int] | None:
    """Return which entries of a vector a Gather or Slice picks, in order."""
    length = info.dim(node.inputs[0], 0) if node.op_type in ("Gather", "Slice") else None
    if not isinstance(length, int) or not length:
        return None
    if node.op_type == "Gather":
        indices = info.integers(node.inputs[1])
        return None if indices is None else [index % length for index in indices]
    if node.op_type != "Slice" or len(node.inputs) < 3:
        return None
    numbers = [info.integers(operand) for operand in node.inputs[1:]]
    if any(part is None or len(part) != 1 for part in numbers):
        return None
    given = [part[0] for part in numbers if part]
    start, end, step = (*given[:2], given[3] if len(given) > 3 else 1)
    return None if step == 0 else list(range(length))[start:end:step]


def stream_of(
    info: ModelInfo,
    transfers: ModelTransfers,
    start: Point,
    norms: Mapping[ir.Node, NormSite | None],
) -> Stream | Refusal:
    """Return the stream of ``start``, or the first reason why it must keep a channel.

    ``norms``: the nodes of all norms, including those that could be CRMSNorms.
    """
    walk = ResizingWalk(info, transfers, norms)
    return walk.run(start) or walk.stream


class ResizingWalk(StreamWalk):
    """Finds a stream whose last channel is left out; ``entries`` of it keep theirs.

    ``starts`` are given by norms without it.
    """

    change = "without its last channel"

    def __init__(
        self, info: ModelInfo, transfers: ModelTransfers, norms: Mapping[ir.Node, NormSite | None]
    ):
        super().__init__(info, transfers, norms)
        self._shapes: list[tuple[Point, Reader]] = []

    def run(self, start: Point) -> Refusal | None:
        """Find the stream, and whether everything that is told a size may be told another."""
        return super().run(start) or self._refuse_sizes()

    def _refuse_sizes(self) -> Refusal | None:
        """Refuse a fixed number of channels that is not the stream's own, or return None."""
        axes = self.stream.channels
        for point, reader in self._shapes:
            position = point.fiber.blocks[0].axis - _start_of(self.info, reader.node)
            for known in size_readers(self.info, reader.node.outputs[0], position):
                if known is None or not self._is_own(*known, axes):
                    return self.refuse_reader(point, reader)
        return None

    def _is_own(self, reader: Reader, position: int, axes: Mapping[ir.Value, int]) -> bool:
        """Whether a size is the number of channels of a value of the stream."""
        node = reader.node
        if not takes_shape(node) or reader.index != 1:
            return False
        rank, length = self.info.rank(node.outputs[0]), self.info.dim(node.inputs[1], 0)
        if rank is None or not isinstance(length, int):
            return False
        return axes.get(node.outputs[0]) == position + rank - length

    def enters(self, point: Point, origin: Backward) -> bool:
        """Whether its mean is 0, so that the last channel follows from the others."""
        del point
        return isinstance(origin, ZeroMean)

    def refuse_carrier(self, node: ir.Node, point: Point) -> Refusal | None:
        """Say where a channel of the result depends on others of what is read, or on sizes."""
        if (
            node.domain
            or not facets.keeps_channels_apart(row_of(node))
            or not keeps_order(self.info, node, point.fiber)
            or _names_sizes(self.info, node, point.fiber)
        ):
            return self.unknown(node)
        return None

    def refuse_weight(self, point: Point) -> Refusal | None:
        """Return why a weight cannot omit a channel, or None."""
        why, tensor = super().refuse_weight(point), self.info.tensor(point.value)
        if why is None and tensor is not None and not is_centred_weight(tensor, point.fiber):
            sentence = f"weight '{point.value.name}' has a mean along {point.fiber}"
            return Refusal(RefusalCode.HAS_MEAN, sentence, (point.value.name or "",))
        return why

    def read(self, point: Point, reader: Reader) -> Refusal | None:
        """Take a reader into the stream; one of its shape is looked at when all of it is known."""
        outside = reader.node not in self.norms
        if outside and reader.node.op_type == "Shape" and not reader.node.domain:
            self._shapes.append((point, reader))
            return None
        return super().read(point, reader)


def _start_of(info: ModelInfo, shape: ir.Node) -> int:
    """Return the axis of the first size that a Shape node reads."""
    start = shape.attributes.get_int("start", 0)
    return start + (info.rank(shape.inputs[0]) or 0) if start < 0 else start


def _names_sizes(info: ModelInfo, node: ir.Node, fiber: Fiber) -> bool:
    """Whether a Slice has explicit bounds along the channels, which would change."""
    if row_of(node).family is not Family.SLICE:
        return False
    axes = sliced_axes(info, node)
    return axes is None or not set(axes).isdisjoint(fiber.axes)
