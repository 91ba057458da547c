"""Proof of scales that moved into the linear layer before them.

For every value u of the original and the value v that stands for it: v = r * u + s per channel
from a linear layer whose weight is diag(r) W on, until the products and sums by constants that
make up r and s, and that the rewritten model lacks, have been passed.

* a linear layer: W' = diag(r) W within one rounding, s = b' - r * b;
* the Add of a bias: s becomes s + b' - r * b;
* z = c * u + d that is gone: v = (r / c) * z + (s - (r / c) * d), where r has been kept as the
  product of the c that it is claimed to be, so that nothing is divided;
* a Split gives each part its own elements of r and s; what is pending there is what is not 1;
* what moves elements passes r and s on; for one number, so does a product with an activation.

s counts as 0 when it is within the roundings of the biases that it comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.affine.back import HOMOGENEOUS, ChannelOp, Writer, channel_op, embedded, writer_of
from onnxfold.affine.channels import Channels
from onnxfold.affine.laws import Passes, pulled, react
from onnxfold.graph import GraphView
from onnxfold.graph.compare import pairs
from onnxfold.planning.fusion import ScaleFusion
from onnxfold.prove_affine import AffineProof
from onnxfold.prove_forward import Failed, ForwardChecker, Image
from onnxfold.refusal import Refusal
from onnxfold.rewrite.edited import float64_chunks, unrounded
from onnxfold.zero_mean.arrays import rounding_of, within_rounding

__all__ = ["prove_scales"]

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Ahead(Image):
    """v = prod(pending) * u + s along ``channels``, s up to ``slack``; pending is in order."""

    pending: tuple[Float64, ...] = ()
    slack: Float64 | None = None

    @property
    def scale(self) -> Float64:
        """R, the product of what is pending."""
        size = 1 if self.channels is None else self.channels.size
        return np.asarray(prod(self.pending, start=np.ones(size)))


def prove_scales(
    before: GraphView, after: GraphView, fusions: Iterable[ScaleFusion]
) -> AffineProof:
    """Check ``after`` against ``before``; the fusions name the operators that are gone."""
    checker = _Checker(before, after, tuple(fusions))
    checker.walk()
    return AffineProof(checker.scaled, checker.shifted, tuple(checker.failures))


class _Checker(ForwardChecker):
    def __init__(self, before: GraphView, after: GraphView, fusions: tuple[ScaleFusion, ...]):
        super().__init__(before, after)
        self.scaled = 0
        self.shifted = 0
        values = before.by_ref()
        self._ops: dict[ir.Node, ChannelOp] = {}
        self._claims: dict[ir.Node, list[tuple[ChannelOp, Writer]]] = defaultdict(list)
        for fusion in fusions:
            value = values.get(fusion.output)
            node = None if value is None else value.producer()
            op = None if node is None else channel_op(before, node)
            if op is None or node is None:
                self.failures.append(f"'{fusion.output}' is no product or sum with a constant")
                continue
            writer = writer_of(before, op, frozenset(self._gone))
            if isinstance(writer, Refusal):
                self.failures.append(f"'{fusion.output}': {writer.sentence}")
                continue
            self._ops[node] = op
            self._gone.add(node)
            self._claims[writer.node].append((op, writer))
        self._find_heirs()

    def _find_heirs(self) -> None:
        """What stands before an operator that is gone has its name, or that of the next one."""
        for node in reversed(list(self._ops)):
            start, ref = node.inputs[self._ops[node].index], self._before.ref(node.outputs[0])
            if start is not None and self._before.ref(start) not in self._new:
                self._alias[start] = self._alias.get(node.outputs[0], ref)

    def _relate_special(self, node: ir.Node, twin: ir.Node) -> bool:
        claims = self._claims.get(node)
        if not claims:
            return False
        weight = claims[0][1].weight
        index = self._weight_input(node, weight.reader.node, weight.reader.index)
        changed = {index, 2} if node.op_type != "MatMul" else {index}
        for position, pair in enumerate(pairs(node, twin)):
            if position not in changed and not self._unchanged(*pair):
                raise Failed("reads something else that has changed")
        channels = max((writer.output for _, writer in claims), key=lambda c: len(c.digits))
        pending = tuple(
            _widened(embedded(op.scale, writer.part, writer.output.size), writer.output, channels)
            for op, writer in claims
            if op.scale is not None
        )
        self._check_weight(node, twin, index, claims)
        image = _Ahead(twin.outputs[0], channels, pending=pending)
        s, slack = self._own_bias(node, twin, image) if node.op_type != "MatMul" else (None, None)
        zeros = np.zeros(channels.size)
        self._images[node.outputs[0]] = _Ahead(
            twin.outputs[0],
            channels,
            None,
            zeros if s is None else s,
            pending=pending,
            slack=zeros if slack is None else slack,
        )
        return True

    def _weight_input(self, node: ir.Node, holder: ir.Node, index: int) -> int:
        """Return the input of a linear layer behind which a constant is read."""
        if holder is node:
            return index
        for position, operand in enumerate(node.inputs[:2]):
            value = operand
            while value is not None:
                producer = value.producer()
                if producer is holder:
                    return position
                value = producer.inputs[0] if producer is not None and producer.inputs else None
        raise Failed("has no weight that can be found")

    def _check_weight(
        self, node: ir.Node, twin: ir.Node, index: int, claims: list[tuple[ChannelOp, Writer]]
    ) -> None:
        """W' = W times every claimed scale, within one rounding."""
        old = self._before.tensor(claims[0][1].weight.value)
        new = self._after.tensor(self._root(twin, index))
        first, second = node.inputs[index], twin.inputs[index]
        self._same_layout(first, second)
        if old is None or new is None or tuple(old.shape.numpy()) != tuple(new.shape.numpy()):
            raise Failed("has a weight of another shape")
        if old.dtype != new.dtype:
            raise Failed("has a weight of another type")
        shape = tuple(old.shape.numpy())
        factor = np.ones((1,) * len(shape))
        for op, writer in claims:
            if op.scale is not None:
                own = writer.weight.channels
                factor = factor * own.spread(embedded(op.scale, writer.part, own.size), shape)
        stored = new.numpy().reshape(shape or (1,))
        for start, chunk in float64_chunks(old):
            rows = slice(start, start + chunk.shape[0])
            exact = chunk * (factor[rows] if factor.ndim and factor.shape[0] > 1 else factor)
            if np.array_equal(stored[rows], exact.astype(stored.dtype)):
                continue
            if not within_rounding(stored[rows], exact, 2.0 * np.abs(exact)):
                raise Failed("has a weight that is not the original times the scale")
        self.scaled += 1

    def _root(self, node: ir.Node, index: int) -> ir.Value | None:
        value = node.inputs[index]
        while value is not None and self._after.tensor(value) is None:
            producer = value.producer()
            value = producer.inputs[0] if producer is not None and producer.inputs else None
        return value

    def _same_layout(self, old: ir.Value | None, new: ir.Value | None) -> None:
        """The layouts between a constant and its reader are the same nodes."""
        while old is not None and self._before.tensor(old) is None:
            if new is None or self._before.ref(old) != self._after.ref(new):
                raise Failed("has a weight in another layout")
            first, second = old.producer(), new.producer()
            if first is None or second is None or first.op_identifier() != second.op_identifier():
                raise Failed("has a weight in another layout")
            old, new = first.inputs[0], second.inputs[0]

    def _own_bias(self, node: ir.Node, twin: ir.Node, image: _Ahead) -> tuple[Float64, Float64]:
        tensors = []
        for view, side in ((self._before, node), (self._after, twin)):
            operand = side.inputs[2] if len(side.inputs) > 2 else None
            tensor = view.tensor(operand)
            if operand is not None and tensor is None:
                raise Failed("has a bias that is no constant")
            tensors.append(tensor)
        arrays = [
            None if tensors[0] is None else unrounded(tensors[0]),
            None if tensors[1] is None else tensors[1].numpy(),
        ]
        size = 1 if image.channels is None else image.channels.size
        if node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) != 1.0:
            raise Failed("multiplies its bias")
        if size == 1:
            sizes = {array.size for array in arrays if array is not None}
            if len(sizes) > 1:
                raise Failed("has a bias of another size")
            # One number for all channels: every element of the bias must follow it alone.
            b, b_new = (np.zeros(1) if a is None else _wide(a) for a in arrays)
            slack = np.zeros(1) if arrays[1] is None else rounding_of(arrays[1]).reshape(-1)
            if np.all(np.abs(b_new - image.scale * b) <= slack * (1 + 2.0**-20) + 1e-300):
                self.shifted += arrays[1] is not None
                return np.zeros(1), np.zeros(1)
            raise Failed("has a bias that is not the original times the scale")
        b, b_new = (np.zeros(size) if a is None else _wide(a) for a in arrays)
        if b.size != size or b_new.size != size:
            raise Failed("has a bias of another size than its output")
        self.shifted += arrays[1] is not None
        slack = np.zeros(size) if arrays[1] is None else rounding_of(arrays[1]).reshape(-1)
        return b_new - image.scale * b, slack

    def _relate_removed(self, node: ir.Node) -> None:
        if self._before.array(node.outputs[0]) is not None:
            return
        op = self._ops.get(node)
        start = None if op is None else node.inputs[op.index]
        image = None if start is None else self._images.get(start)
        if op is not None and image is not None and image.equal:
            zeros = np.zeros(op.channels.size)
            image = _Ahead(image.value, op.channels, None, zeros, slack=zeros)
        if op is None or not isinstance(image, _Ahead) or image.channels is None:
            raise Failed("is gone, and nothing stands for it")
        s, slack, pending = image.s, image.slack, image.pending
        if s is None or slack is None:
            raise Failed("is gone, and nothing stands for it")
        if op.scale is not None:
            if not pending or not np.array_equal(
                pending[0], _widened(op.scale, op.channels, image.channels)
            ):
                raise Failed("is gone, and no weight has taken its scale")
            pending = pending[1:]
        if op.shift is not None:
            rest = prod(pending, start=np.ones(image.channels.size))
            d = _widened(op.shift, op.channels, image.channels)
            s, slack = s - rest * d, slack + 2.0**-50 * np.abs(rest * d)
        self._images[node.outputs[0]] = _settled(image.value, image.channels, pending, s, slack)

    def _relate_changed(self, node: ir.Node, twin: ir.Node) -> None:
        related: dict[int, _Ahead] = {}
        for index, (old, new) in enumerate(pairs(node, twin)):
            image = None if old is None else self._images.get(old)
            if isinstance(image, _Ahead) and image.channels is not None:
                if image.value is not new or old is None:
                    raise Failed("reads another value than it did")
                producer = old.producer()
                if producer is None or producer.graph is not node.graph:
                    raise Failed("reads a changed value from inside a body")
                related[index] = image
        if len(related) != 1:
            raise Failed("reads what has changed")
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            self._images[node.outputs[0]] = Image(twin.outputs[0])
            return
        ((index, image),) = related.items()
        if node.op_type == "Add" and node.domain == "" and self._add_bias(node, twin, index, image):
            return
        for position, pair in enumerate(pairs(node, twin)):
            if position != index and not self._unchanged(*pair):
                raise Failed("reads something else that has changed")
        if (node.domain, node.op_type) == ("", "Split") and image.channels is not None:
            self._cut(node, twin, image, image.channels)
            return
        channels = self._behind(node, index, image)
        self._images[node.outputs[0]] = _Ahead(
            twin.outputs[0], channels, None, image.s, pending=image.pending, slack=image.slack
        )

    def _cut(self, node: ir.Node, twin: ir.Node, image: _Ahead, channels: Channels) -> None:
        """Relate every part; one number for all of it is a scale of any channels."""
        axis = node.attributes.get_int("axis", 0) % (self._before.rank(node.inputs[0]) or 1)
        sizes = [self._before.dim(output, axis) for output in node.outputs]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != len(sizes) or channels != Channels.along([(axis, sum(known))]):
            raise Failed("cuts a changed value along other channels")
        if image.s is None or image.slack is None:
            raise Failed("cuts a value that nothing stands for")
        start = 0
        for size, old, new in zip(known, node.outputs, twin.outputs, strict=True):
            part = slice(start, start + size)
            pending = tuple(scale[part] for scale in image.pending if np.any(scale[part] != 1))
            own, s, slack = Channels.along([(axis, size)]), image.s[part], image.slack[part]
            if _negligible(s, slack) and all(np.all(scale == scale[0]) for scale in pending):
                own, s, slack = Channels(()), np.zeros(1), np.zeros(1)
                pending = tuple(scale[:1] for scale in pending)
            self._images[old] = _settled(new, own, pending, s, slack)
            start += size

    def _behind(self, node: ir.Node, index: int, image: _Ahead) -> Channels:
        channels = image.channels or Channels(())
        if not channels.digits:
            moves = index == 0 and pulled(self._before, node.outputs[0], channels) is not None
            # Linear without a constant term, so that a factor passes and a shift would not.
            linear = "MatMul" in node.op_type or (index == 0 and node.op_type in HOMOGENEOUS)
            if moves or (linear and _negligible(image.s, image.slack)):
                return channels
            raise Failed("sees a changed value")
        reaction = react(self._before, node, index, channels)
        if not isinstance(reaction, Passes) or reaction.shift_refusal is not None:
            raise Failed("sees a changed value")
        if set(reaction.jointly) != {index} or len(reaction.outputs) != 1 or len(node.outputs) > 1:
            raise Failed("sees a changed value")
        return reaction.outputs[0][1]

    def _add_bias(self, node: ir.Node, twin: ir.Node, index: int, image: _Ahead) -> bool:
        old, new = node.inputs[1 - index], twin.inputs[1 - index]
        first, second = self._before.tensor(old), self._after.tensor(new)
        if first is None or second is None or image.channels is None:
            return False
        rank = self._before.rank(node.outputs[0]) or 0
        if rank != self._before.rank(node.inputs[index]) or image.s is None or image.slack is None:
            raise Failed("broadcasts a changed value")
        stored = second.numpy()
        if not image.channels.digits and max(first.size, second.size) > 1:
            b, b_new = _wide(unrounded(first)), _wide(stored)
            if b.shape != b_new.shape or np.any(image.s):
                raise Failed("has a bias of another size")
            error = np.abs(b_new - image.scale * b)
            if not np.all(error <= rounding_of(stored).reshape(-1) * (1 + 2.0**-20) + 1e-300):
                raise Failed("has a bias that is not the original times the scale")
            s, slack = image.s, image.slack
        else:
            own, rounding = _own_shift(unrounded(first), stored, image, image.channels, rank)
            s, slack = image.s + own, image.slack + rounding
        self.shifted += 1
        self._images[node.outputs[0]] = _Ahead(
            twin.outputs[0], image.channels, None, s, pending=image.pending, slack=slack
        )
        return True


def _own_shift(
    b: Array, stored: Array, image: _Ahead, channels: Channels, rank: int
) -> tuple[Float64, Float64]:
    """Return b' - r * b of constants that broadcast against a tensor, and its rounding.

    Raises Failed where it is not the same everywhere along the other axes.
    """
    aligned = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (b, stored)]
    if aligned[0].shape != aligned[1].shape:
        raise Failed("has a bias of another size")
    shape = list(aligned[0].shape)
    for digit in channels.digits:
        if shape[digit.axis] == 1:
            shape[digit.axis] = digit.inner * digit.size
        if shape[digit.axis] % (digit.inner * digit.size):
            raise Failed("has a constant that does not fit the channels of the change")
    size = tuple(shape)
    scaled = aligned[0].astype(np.float64) * channels.spread(image.scale, size)
    shift = np.broadcast_to(aligned[1].astype(np.float64) - scaled, size).reshape(-1)
    allowed = rounding_of(aligned[1]) + 2.0**-50 * np.abs(scaled)
    allowed = np.broadcast_to(allowed, size).reshape(-1)
    order = channels.spread(np.arange(channels.size, dtype=np.float64), size).astype(np.int64)
    order = np.broadcast_to(order, size).reshape(-1)
    first = np.unique(order, return_index=True)[1]
    slack = np.zeros(channels.size)
    np.maximum.at(slack, order, allowed)
    error = np.abs(shift - shift[first][order])
    if not np.all(error <= (slack[order] + allowed) * (1 + 2.0**-20) + 1e-300):
        raise Failed("has a constant that varies along other axes than the change")
    return shift[first], slack


def _settled(
    value: ir.Value,
    channels: Channels,
    pending: tuple[Float64, ...],
    s: Float64,
    slack: Float64,
) -> Image:
    """Return the relation, which is equality where no scale is left and s is within roundings."""
    if not pending and _negligible(s, slack):
        return Image(value)
    return _Ahead(value, channels, None, s, pending=pending, slack=slack)


def _negligible(s: Float64 | None, slack: Float64 | None) -> bool:
    """Whether a shift is within the roundings of the biases that it comes from."""
    if s is None or slack is None:
        return False
    return bool(np.all(np.abs(s) <= slack * (1 + 2.0**-20) + 1e-300))


def _wide(array: npt.NDArray[np.generic]) -> Float64:
    return array.astype(np.float64).reshape(-1)


def _widened(vector: Float64, own: Channels, wanted: Channels) -> Float64:
    if own.size == 1:
        return np.broadcast_to(vector.reshape(-1)[:1], (wanted.size,)).astype(np.float64)
    if own.size != wanted.size:
        raise Failed("works along other channels than the change before it")
    return vector
