"""Proof of affine fusion: the model with gamma and beta in its weights against the original.

For every value u of the original, the value v of the rewritten model that stands for it, and how
the two are related: equal, or u = r * v + s per channel (a norm that has lost gamma r and beta s).
The relations are computed forward through the original graph, from the two graphs and the arrays:

* a norm without its operands, or a Mul or Add that is gone, starts or changes a relation;
* a carrier (affine/laws.py) passes it on;
* a linear reader ends it, if its weight is W diag(r), elementwise within one rounding, and its
  bias or the Add behind it, which may be new, has taken W s, within one rounding;
* any other reader of related values, and any changed constant read by anything else, fails.

Every graph output must end equal.  The plan only names the values that changed places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import AxisBlock, ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.graph.compare import pairs
from onnxfold.graph.stored_rows import paired_rows, stored_rows
from onnxfold.norms import find_norms
from onnxfold.passes.affine.source import Source, source_of
from onnxfold.passes.affine.transfer import Absorbs, Passes, Unseen, adds_bias, react
from onnxfold.passes.affine.walk import Root, root_of
from onnxfold.passes.fusion import AffineFusion
from onnxfold.passes.scales.parts import Cut, cut_of
from onnxfold.proof.forward import Failed, ForwardChecker, Image, vector_over
from onnxfold.refusal import Refusal
from onnxfold.weights.affine import weighted_sum
from onnxfold.weights.edited import evaluated, float64_chunks
from onnxfold.weights.means import within_rounding

__all__ = ["AffineProof", "prove_affine"]

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AffineProof:
    """How many weights took a diagonal and how many biases a shift, and what failed."""

    scaled_weights: int
    shifted_biases: int
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything could be shown."""
        return not self.failures


def prove_affine(
    before: ModelInfo, after: ModelInfo, fusions: Iterable[AffineFusion]
) -> AffineProof:
    """Check ``after`` against ``before``: views of prepared models with the same names."""
    checker = _Checker(before, after, tuple(fusions))
    checker.walk()
    return AffineProof(checker.scaled, checker.shifted, tuple(checker.failures))


class _Checker(ForwardChecker):
    def __init__(self, before: ModelInfo, after: ModelInfo, fusions: tuple[AffineFusion, ...]):
        super().__init__(before, after)
        self.scaled = 0
        self.shifted = 0
        outputs = {fusion.output for fusion in fusions}
        self._sources = {
            source.value: source
            for site in find_norms(before)
            if before.ref(site.output) in outputs
            and isinstance(source := source_of(before, site), Source)
        }
        # A value that lost the operators behind it has taken over the name of the last one.
        for source in self._sources.values():
            start = source.nodes[-1].inputs if source.nodes else ()
            for operand in start:
                if operand is None or before.array(operand) is not None:
                    continue
                if before.ref(operand) not in self._new:
                    self._alias[operand] = before.ref(source.value)

        self._new_adds = self._found_adds(fusions)

    def _found_adds(self, fusions: tuple[AffineFusion, ...]) -> dict[ir.Value, ir.Node]:
        """Return the Adds that the plan puts behind products, which leave them their names."""
        found: dict[ir.Value, ir.Node] = {}
        values = self._before.by_ref()
        places = (reader.bias for fusion in fusions for reader in fusion.readers)
        for place in places:
            ref = "" if place is None or not place.behind else place.reader.node
            old, new = values.get(ref), self._new.get(ref)
            add = None if new is None else new.producer()
            if old is None or add is None or (add.domain, add.op_type) != ("", "Add"):
                continue
            if len(add.inputs) == 2 and add.inputs[0] is not None:
                self._alias[old] = self._after.ref(add.inputs[0])
                found[old] = add
        return found

    def _relate_special(self, node: ir.Node, twin: ir.Node) -> bool:
        source = self._sources.get(node.outputs[0])
        if source is None or source.nodes:
            return False
        self._relate_norm(node, twin, source)
        return True

    def _relate_removed(self, node: ir.Node) -> None:
        """A Mul or Add with a constant that is gone, or a constant that nothing reads any more."""
        if self._before.array(node.outputs[0]) is not None:
            return
        if node.op_type not in ("Mul", "Add") or node.domain or len(node.inputs) != 2:
            raise Failed("is gone or is another operator")
        for index, operand in enumerate(node.inputs):
            array = self._before.array(operand)
            other = node.inputs[1 - index]
            image = None if other is None else self._images.get(other)
            if array is None or image is None or image.weight:
                continue
            source = next((s for s in self._sources.values() if node in s.nodes), None)
            if source is None:
                raise Failed("is gone, and the plan does not say why")
            part = vector_over(array, source.channels, self._before.rank(node.outputs[0]) or 0)
            r, s = self._numbers(image, source.channels)
            r, s = (r * part, s * part) if node.op_type == "Mul" else (r, s + part)
            self._images[node.outputs[0]] = Image(image.value, source.channels, r, s)
            return
        raise Failed("is gone")

    def _relate_norm(self, node: ir.Node, twin: ir.Node, source: Source) -> None:
        """With r = gamma / gamma': gamma * x + beta = r * (gamma' * x + beta') + s."""
        first, other = node.inputs[0], twin.inputs[0]
        if not self._unchanged(first, other) or len(node.inputs) > 3 or len(twin.inputs) > 3:
            raise Failed("is a norm of something else")
        gamma, beta = (self._operand(self._before, node, i, source) for i in (1, 2))
        new_gamma, new_beta = (self._operand(self._after, twin, i, source) for i in (1, 2))
        if np.any(new_gamma == 0):
            raise Failed("has a gamma with zeros left")
        r = gamma / new_gamma
        s = beta - r * new_beta
        if np.all(np.abs(s) <= 2.0**-22 * np.abs(beta)):  # beta / gamma, rounded once
            s = np.zeros_like(s)
        channels = None if np.all(r == 1) and not np.any(s) else source.channels
        self._images[node.outputs[0]] = Image(twin.outputs[0], channels, r, s)
        for old, new in zip(node.outputs[1:], twin.outputs[1:], strict=True):
            self._images[old] = Image(new)  # the statistics

    def _operand(self, view: ModelInfo, node: ir.Node, index: int, source: Source) -> Float64:
        operand = node.inputs[index] if index < len(node.inputs) else None
        if operand is None:
            return np.full(source.channels.size, 1.0 if index == 1 else 0.0)
        array, site = view.array(operand), source.site
        if array is None:
            raise Failed("has a gamma or beta that is no constant")
        rank = self._before.rank(source.value) or 0
        if site.affine_axis is not None:
            behind = (1,) * (rank - 1 - site.affine_axis % rank)
            array = np.repeat(array.reshape(-1), site.affine_repeat).reshape((-1, *behind))
        return vector_over(array, source.channels, rank)

    def _relate_changed(self, node: ir.Node, twin: ir.Node) -> None:
        """A node with related inputs or changed constants: a carrier, a bias, a linear reader."""
        related = {}
        for index, (old, new) in enumerate(pairs(node, twin)):
            image = None if old is None else self._images.get(old)
            if image is not None and image.value is not new and not self._copied(old, new):
                raise Failed(f"reads '{new.name if new else ''}' instead of '{image.value.name}'")
            if image is not None and image.channels is not None:
                producer = None if old is None else old.producer()
                if producer is None or producer.graph is not node.graph:
                    raise Failed("reads a changed value from inside a body")
                related[index] = image
        if related and adds_bias(node, min(related)) and self._add_bias(node, twin, related):
            return
        if not related:
            raise Failed("reads a constant that has changed")
        if node.op_type in ("Split", "Slice") and self._cut(node, twin, related):
            return
        reactions = {
            index: react(self._before, node, index, image.channels or Channels(()))
            for index, image in related.items()
        }
        if all(isinstance(reaction, Unseen) for reaction in reactions.values()):
            self._images.update(zip(node.outputs, map(Image, twin.outputs), strict=True))
            return
        for index, image in related.items():
            reaction = reactions[index]
            if isinstance(reaction, Absorbs) and len(related) == 1:
                self._absorb(node, twin, index, image, reaction)
                return
            if not isinstance(reaction, Passes):
                sentence = reaction.sentence if isinstance(reaction, Refusal) else "reads it twice"
                raise Failed(f"sees a changed value: {sentence}")
            self._pass_on(node, twin, related, image, reaction)

    def _add_bias(self, node: ir.Node, twin: ir.Node, related: dict[int, Image]) -> bool:
        """u0 + b = r * v0 + s + b and v0 + b': u = r * (v0 + b') + (s + b - r * b')."""
        if len(related) != 1 or len(node.inputs) != 2:
            return False
        ((index, image),) = related.items()
        old, new = node.inputs[1 - index], twin.inputs[1 - index]
        tensors = self._before.tensor(old), self._after.tensor(new)
        if tensors[0] is None or tensors[1] is None or image.channels is None:
            return False
        rank = self._before.rank(node.outputs[0]) or 0
        if rank != self._before.rank(node.inputs[index]):
            raise Failed("broadcasts a changed value")
        arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
        b, b_new = (vector_over(array, image.channels, rank) for array in arrays)
        r, s = self._numbers(image, image.channels)
        stored = np.broadcast_to(arrays[1], arrays[1].shape).reshape(-1)
        exact = (s + b) / np.where(r == 0, 1.0, r)
        one_each = stored.size == image.channels.size
        if one_each and not np.any(r == 0):
            magnitude = (np.abs(s) + np.abs(b)) / np.abs(r)
            order = vector_over(arrays[1], image.channels, rank).astype(arrays[1].dtype)
            if within_rounding(order, exact, magnitude):
                s, b, b_new = np.zeros_like(s), np.zeros_like(s), np.zeros_like(s)
                self.shifted += 1
        s = s + b - r * b_new
        channels = None if np.all(r == 1) and not np.any(s) else image.channels
        if channels is not None and node.op_type != "Add":
            raise Failed("sees a changed value in an activation")
        self._images[node.outputs[0]] = Image(twin.outputs[0], channels, r, s)
        return True

    def _cut(self, node: ir.Node, twin: ir.Node, related: dict[int, Image]) -> bool:
        """part(r * v + s) = part(r) * part(v) + part(s), cut along the axis of the change."""
        image = related.get(0)
        digits = () if image is None or image.channels is None else image.channels.digits
        cuts = [cut_of(self._before, output) for output in node.outputs]
        known = [cut for cut in cuts if cut is not None and digits == (_axis_of(cut),)]
        if image is None or image.channels is None or len(known) < len(cuts):
            return False
        if len(related) > 1 or not all(self._unchanged(*p) for p in pairs(node, twin)[1:]):
            raise Failed("cuts a changed value elsewhere")
        r, s = self._numbers(image, image.channels)
        for cut, old, new in zip(known, node.outputs, twin.outputs, strict=True):
            part = slice(cut.start, cut.start + cut.length)
            channels = Channels.along([(cut.axis, cut.length)])
            self._images[old] = Image(new, channels, r[part], s[part])
        return True

    def _absorb(
        self, node: ir.Node, twin: ir.Node, index: int, image: Image, absorbs: Absorbs
    ) -> None:
        r, s = self._numbers(image, image.channels or Channels(()))
        roots = []
        for view, reader in ((self._before, node), (self._after, twin)):
            at = Reader(reader, absorbs.weight)
            root = root_of(view, at, absorbs.channels, absorbs.outer)
            if isinstance(root, Refusal):
                raise Failed(root.sentence)
            roots.append(root)
        weights = self._weights(roots[0], roots[1], r)
        for position, pair in enumerate(pairs(node, twin)):
            if position not in (index, absorbs.weight, absorbs.bias) and not self._unchanged(*pair):
                raise Failed("reads another constant that has changed")
        total = np.zeros(absorbs.outer.size)
        if np.any(s):
            if absorbs.shift_refusal is not None:
                raise Failed(f"sees a shift: {absorbs.shift_refusal.sentence}")
            if any(not digit.whole for digit in roots[0].outer.digits):
                raise Failed("has a weight in which its outputs cannot be told apart")
            shape, W = tuple(weights.shape.numpy()), evaluated(weights)
            total = absorbs.factor * weighted_sum(W, shape, s, roots[0].channels, roots[0].outer)
        add = self._new_adds.get(node.outputs[0])
        if add is not None:
            self._images[node.outputs[0]] = self._new_bias(twin, add, absorbs, total)
        elif absorbs.bias is None:
            channels = absorbs.output if np.any(total) else None
            ones = np.ones_like(total)
            self._images[node.outputs[0]] = Image(twin.outputs[0], channels, ones, total)
        else:
            self._own_bias(node, twin, absorbs.bias, total)
            self._images[node.outputs[0]] = Image(twin.outputs[0])
        for old, new in zip(node.outputs[1:], twin.outputs[1:], strict=True):
            self._images[old] = Image(new)

    def _new_bias(self, twin: ir.Node, add: ir.Node, absorbs: Absorbs, total: Float64) -> Image:
        """v0 + b' with b' = W s stands for u0 = v0 + W s; b' is compared with W s."""
        tensor, rank = self._after.tensor(add.inputs[1]), self._after.rank(add.outputs[0])
        if absorbs.bias is not None or add.inputs[0] is not twin.outputs[0]:
            raise Failed("has a new bias for something else")
        if tensor is None or rank is None:
            raise Failed("has a new bias that is no constant")
        stored = vector_over(tensor.numpy(), absorbs.output, rank)
        if not within_rounding(stored.astype(tensor.numpy().dtype), total, np.abs(total)):
            raise Failed("has a new bias that is not W beta")
        self.shifted += 1
        return Image(add.outputs[0])

    def _weights(self, old: Root, new: Root, r: Float64) -> ir.TensorProtocol:
        """Check W' = W diag(r) within one rounding; return W."""
        first, second = self._before.tensor(old.value), self._after.tensor(new.value)
        if first is None or second is None or old.channels != new.channels:
            raise Failed("has another weight")
        shape = tuple(first.shape.numpy())
        if shape != tuple(second.shape.numpy()) or first.dtype != second.dtype:
            raise Failed("has a weight of another shape or type")
        spread = old.channels.spread(r, shape)
        start = 0
        chunks = (chunk for _, chunk in float64_chunks(first))
        for chunk, stored in paired_rows(chunks, stored_rows(second)):
            rows = slice(start, start + chunk.shape[0])
            start = rows.stop
            factor = spread[rows] if spread.ndim and spread.shape[0] > 1 else spread
            exact = chunk * factor
            if np.array_equal(stored, exact.astype(stored.dtype)):
                continue
            if not within_rounding(stored, exact, 0.0):
                raise Failed(f"weight '{new.value.name}' is not the original times gamma")
        self.scaled += 1
        return first

    def _own_bias(self, node: ir.Node, twin: ir.Node, index: int, total: Float64) -> None:
        old, new = (n.inputs[index] if index < len(n.inputs) else None for n in (node, twin))
        if self._unchanged(old, new) and not np.any(total):
            return
        tensors = self._before.tensor(old), self._after.tensor(new)
        if tensors[1] is None or (old is not None and tensors[0] is None):
            raise Failed("has a bias that is no constant")
        stored = tensors[1].numpy()
        exact = np.zeros(total.size) if tensors[0] is None else tensors[0].numpy()
        if stored.size != total.size or exact.size != total.size:
            raise Failed("has a bias of another size than its output")
        wide = exact.astype(np.float64).reshape(-1)
        magnitude = np.abs(wide) + np.abs(total)
        if not within_rounding(stored.reshape(-1), wide + total, magnitude):
            raise Failed("has a bias that is not the original plus W beta")
        self.shifted += 1


def _axis_of(cut: Cut) -> AxisBlock:
    return AxisBlock(cut.axis, 1, cut.total, 1)
