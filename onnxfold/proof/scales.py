"""Proof of scales that moved into the linear layer before them.

For every value u of the original and the value v that stands for it: v = r * u + s per channel
from a linear layer whose weight is diag(r) W on, until the products and sums by constants that
make up r and s, and that the rewritten model lacks, have been passed.

* a linear layer: W' = diag(r) W within one rounding, s = b' - r * b;
* the Add of a bias: s becomes s + b' - r * b;
* z = c * u + d that is gone: v = (r / c) * z + (s - (r / c) * d), where r has been kept as the
  product of the c that it is claimed to be, so that nothing is divided;
* a part (of a Split, a Slice, a Gather) has its own elements of r and s; what is pending there is
  what is not 1;
* what moves elements passes r and s on; where s is 0, one number r also passes what is homogeneous:
  a product with an activation, and a sum all of whose terms bring it.

s counts as 0 when it is within the roundings of the biases that it comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.channels import SCALAR, Channels
from onnxfold.graph.compare import pairs
from onnxfold.graph.stored_rows import paired_rows, stored_rows
from onnxfold.passes.affine.transfer import Passes, before_layout, react
from onnxfold.passes.fusion import ScaleFusion
from onnxfold.passes.scales.homogeneous import carries_factor
from onnxfold.passes.scales.parts import cut_of
from onnxfold.passes.scales.writer import ChannelOp, Writer, channel_op, embedded, writer_of
from onnxfold.proof.affine import AffineProof
from onnxfold.proof.forward import Failed, ForwardChecker, Image
from onnxfold.proof.pending import (
    Ahead,
    as_number,
    common,
    digit_of,
    negligible,
    own_shift,
    part,
    settled,
    widened,
)
from onnxfold.refusal import Refusal
from onnxfold.weights.edited import float64_chunks, unrounded
from onnxfold.weights.means import rounding_of, within_rounding

__all__ = ["prove_scales"]

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]


def prove_scales(
    before: ModelInfo, after: ModelInfo, fusions: Iterable[ScaleFusion]
) -> AffineProof:
    """Check ``after`` against ``before``; the fusions name the operators that are gone."""
    checker = _Checker(before, after, tuple(fusions))
    checker.walk()
    return AffineProof(checker.scaled, checker.shifted, tuple(checker.failures))


class _Checker(ForwardChecker):
    def __init__(self, before: ModelInfo, after: ModelInfo, fusions: tuple[ScaleFusion, ...]):
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
        channels = common([writer.output for _, writer in claims])
        pending = tuple(
            widened(embedded(op.scale, writer.part, writer.output.size), writer.output, channels)
            for op, writer in claims
            if op.scale is not None
        )
        self._check_weight(node, twin, index, claims)
        image = Ahead(twin.outputs[0], channels, pending=pending)
        s, slack = self._own_bias(node, twin, image) if node.op_type != "MatMul" else (None, None)
        zeros = np.zeros(channels.size)
        self._images[node.outputs[0]] = Ahead(
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
        start = 0
        chunks = (chunk for _, chunk in float64_chunks(old))
        for chunk, stored in paired_rows(chunks, stored_rows(new)):
            rows = slice(start, start + chunk.shape[0])
            start = rows.stop
            exact = chunk * (factor[rows] if factor.ndim and factor.shape[0] > 1 else factor)
            if np.array_equal(stored, exact.astype(stored.dtype)):
                continue
            if not within_rounding(stored, exact, 2.0 * np.abs(exact)):
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

    def _own_bias(self, node: ir.Node, twin: ir.Node, image: Ahead) -> tuple[Float64, Float64]:
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
            slack = slack + 2.0**-50 * np.abs(image.scale * b)
            if np.all(np.abs(b_new - image.scale * b) <= slack * (1 + 2.0**-20) + 1e-300):
                self.shifted += arrays[1] is not None
                return np.zeros(1), np.zeros(1)
            raise Failed("has a bias that is not the original times the scale")
        b, b_new = (np.zeros(size) if a is None else _wide(a) for a in arrays)
        whole = all(digit.whole for digit in (image.channels or SCALAR).digits)
        stored = any(array is not None for array in arrays)
        if b.size != size or b_new.size != size or (stored and not whole):
            raise Failed("has a bias of another size than its output")
        self.shifted += arrays[1] is not None
        slack = np.zeros(size) if arrays[1] is None else rounding_of(arrays[1]).reshape(-1)
        scaled = image.scale * b  # the factors of a weight in float64 may be in another order
        return b_new - scaled, slack + 2.0**-50 * np.abs(scaled)

    def _relate_removed(self, node: ir.Node) -> None:
        if self._before.array(node.outputs[0]) is not None:
            return
        op = self._ops.get(node)
        start = None if op is None else node.inputs[op.index]
        image = None if start is None else self._images.get(start)
        if op is not None and image is not None and image.equal:
            zeros = np.zeros(op.channels.size)
            image = Ahead(image.value, op.channels, None, zeros, slack=zeros)
        if op is None or not isinstance(image, Ahead) or image.channels is None:
            raise Failed("is gone, and nothing stands for it")
        s, slack, pending = image.s, image.slack, image.pending
        if s is None or slack is None:
            raise Failed("is gone, and nothing stands for it")
        if op.scale is not None:
            if not pending or not np.array_equal(
                pending[0], widened(op.scale, op.channels, image.channels)
            ):
                raise Failed("is gone, and no weight has taken its scale")
            pending = pending[1:]
        if op.shift is not None:
            rest = prod(pending, start=np.ones(image.channels.size))
            d = widened(op.shift, op.channels, image.channels)
            s, slack = s - rest * d, slack + 2.0**-50 * np.abs(rest * d)
        self._images[node.outputs[0]] = settled(
            Ahead(image.value, image.channels, None, s, False, pending, slack)
        )

    def _relate_changed(self, node: ir.Node, twin: ir.Node) -> None:
        related = self._related(node, twin)
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            self._images[node.outputs[0]] = Image(twin.outputs[0])
            return
        if not related:
            raise Failed("reads what has changed")
        index, image = next(iter(related.items()))
        alone = len(related) == 1
        add = alone and (node.domain, node.op_type) == ("", "Add")
        if add and self._add_bias(node, twin, index, image):
            return
        for position, pair in enumerate(pairs(node, twin)):
            if position not in related and not self._unchanged(*pair):
                raise Failed("reads something else that has changed")
        if alone and index == 0 and self._cut(node, twin, image):
            return
        channels = self._behind(node, index, image) if alone else None
        if channels is None:
            self._carry_number(node, twin, related)
            return
        self._images[node.outputs[0]] = replace(image, value=twin.outputs[0], channels=channels)

    def _related(self, node: ir.Node, twin: ir.Node) -> dict[int, Ahead]:
        """Return what the inputs have become that are no longer equal."""
        related: dict[int, Ahead] = {}
        for index, (old, new) in enumerate(pairs(node, twin)):
            image = None if old is None else self._images.get(old)
            if isinstance(image, Ahead) and image.channels is not None:
                if image.value is not new or old is None:
                    raise Failed("reads another value than it did")
                producer = old.producer()
                if producer is None or producer.graph is not node.graph:
                    raise Failed("reads a changed value from inside a body")
                related[index] = image
        return related

    def _cut(self, node: ir.Node, twin: ir.Node, image: Ahead) -> bool:
        """Relate every part of a value that has changed along the axis of the cut."""
        cuts = [cut_of(self._before, output) for output in node.outputs]
        along = [cut for cut in cuts if cut is not None and digit_of(image, cut) is not None]
        if not along:
            return False
        if len(along) < len(cuts):
            raise Failed("cuts a changed value into parts of unknown size")
        for cut, old, new in zip(along, node.outputs, twin.outputs, strict=True):
            self._images[old] = part(image, cut, new, node.op_type == "Gather")
        return True

    def _carry_number(self, node: ir.Node, twin: ir.Node, related: dict[int, Ahead]) -> None:
        """Relate what is c times as large, for every input that is c times as large."""
        scales = {as_number(image) for image in related.values()}
        first = scales.pop()
        if scales or first is None or not carries_factor(self._before, node, related):
            raise Failed("sees a changed value")
        zero = np.zeros(1)
        pending = tuple(np.array([scale]) for scale in first)
        for old, new in zip(node.outputs, twin.outputs, strict=True):
            self._images[old] = Ahead(new, SCALAR, None, zero, False, pending, zero)

    def _behind(self, node: ir.Node, index: int, image: Ahead) -> Channels | None:
        """Return the channels behind a node that moves elements, None where it does more."""
        channels = image.channels or SCALAR
        if not channels.digits:
            moves = (
                index == 0 and before_layout(self._before, node.outputs[0], channels) is not None
            )
            return channels if moves else None
        reaction = react(self._before, node, index, channels)
        if not isinstance(reaction, Passes) or reaction.shift_refusal is not None:
            return None
        if set(reaction.jointly) != {index} or len(reaction.outputs) != 1 or len(node.outputs) > 1:
            return None
        return reaction.outputs[0][1]

    def _add_bias(self, node: ir.Node, twin: ir.Node, index: int, image: Ahead) -> bool:
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
            if b.shape != b_new.shape or not negligible(image.s, image.slack):
                raise Failed("has a bias of another size")
            scaled = image.scale * b
            allowed = rounding_of(stored).reshape(-1) + 2.0**-50 * np.abs(scaled)
            if not np.all(np.abs(b_new - scaled) <= allowed * (1 + 2.0**-20) + 1e-300):
                raise Failed("has a bias that is not the original times the scale")
            s, slack = image.s, image.slack
        else:
            own, rounding = own_shift(unrounded(first), stored, image, image.channels, rank)
            s, slack = image.s + own, image.slack + rounding
        self.shifted += 1
        self._images[node.outputs[0]] = Ahead(
            twin.outputs[0], image.channels, None, s, pending=image.pending, slack=slack
        )
        return True


def _wide(array: npt.NDArray[np.generic]) -> Float64:
    return array.astype(np.float64).reshape(-1)
