"""Guesses: the counterpart of each value of a rewritten model, and fibers that may be shifted.

Nothing depends on a guess: the relation of a pair is tested.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxfold.check.reference import is_stochastic, is_supported
from onnxfold.graph import FLOATS, Fiber, ModelInfo, Shape, whole_axes
from onnxfold.graph.equality import pairs
from onnxfold.graph.operands import producer_of
from onnxfold.graph.traversal import bodies
from onnxfold.proof.certificate import Certificate
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.mean_proofs import ZeroMeans, images
from onnxfold.proof.region import Region
from onnxfold.proof.relation import Turn


class Candidates:
    """Guesses for the regions of two models.

    ``claimed``: fibers of values of the original, by reference; ``by_name_alone``: only these
    values may have mean 0.
    """

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        means: ZeroMeans,
        claimed: Mapping[str, Sequence[Fiber]],
        *,
        by_name_alone: bool,
    ):
        self._before, self._after, self._means = before, after, means
        self._claimed, self._by_name_alone = claimed, by_name_alone

    def of_shift(self, region: Region) -> tuple[Fiber, ...]:
        """Return fibers along which a shift of the outputs may be constant, the larger first."""
        u, v = region.pair
        target = None if u is None else self._before.shape(u)
        target = self._after.shape(v) if target is None else target
        if target is None or u is None:
            return ()
        found: dict[Fiber, None] = dict.fromkeys(self._claimed.get(self._before.ref(u), ()))
        found.update(dict.fromkeys(self._of_claims_inside(region, target)))
        for leaf, fiber in self._shifted(region):
            for image in images(fiber, leaf.shape, target):
                found[image] = None
                offset = len(target) - len(leaf.shape)
                repeated = [
                    axis
                    for axis, dim in enumerate(target)
                    if axis not in image.axes
                    and isinstance(dim, int)
                    and (axis < offset or leaf.shape[axis - offset] == 1)
                ]
                wider = whole_axes(target, repeated) if repeated else None
                if wider is not None:
                    found[Fiber.of((*image.blocks, *wider.blocks))] = None
        found.update(dict.fromkeys(_of_parts(list(found))))
        return tuple(sorted(found, key=lambda fiber: (-fiber.size, fiber.part is None)))

    def after_sums(self, region: Region) -> tuple[Fiber, ...]:
        """Return fibers along which s may be constant if some leaf has u = v + s: one axis each."""
        if not any(leaf.relation.adds for leaf in region.leaves):
            return ()
        target = self._after.shape(region.pair[1]) or ()
        found = (whole_axes(target, (axis,)) for axis in range(len(target)))
        return tuple(fiber for fiber in found if fiber is not None and fiber.size > 1)

    def of_turn(self, region: Region) -> tuple[Turn, ...]:
        """Return rotations that may relate the outputs: the leaves' rotations."""
        u, v = region.pair
        target = None if u is None else self._before.shape(u)
        target = self._after.shape(v) if target is None else target
        found: dict[tuple[object, ...], Turn] = {}
        for leaf in region.leaves if target is not None and u is not None else ():
            turn = leaf.relation.turn
            placed = () if turn is None else images(turn.fiber, leaf.shape, target or ())
            for image in placed:
                if turn is not None and len(image.blocks) == 1 and image.size == turn.fiber.size:
                    moved = Turn(image, turn.matrix)
                    found[moved.key] = moved
        return tuple(found.values())

    def _shifted(self, region: Region) -> Iterator[tuple[Leaf, Fiber]]:
        """Yield what may be shifted, with fibers: a weight of mean 0 indicates its bias."""
        for leaf in region.leaves:
            claimed = () if leaf.u is None else self._claimed.get(self._before.ref(leaf.u), ())
            own = leaf.relation.fiber
            yield from ((leaf, fiber) for fiber in (claimed if own is None else (own,)))

    def _of_claims_inside(self, region: Region, target: Shape) -> Iterator[Fiber]:
        """Yield where the fiber of a value centered within a region may be downstream of it."""
        for value in (value for node in region.old.nodes[:-1] for value in node.outputs):
            shape = self._before.shape(value)
            for fiber in self._claimed.get(self._before.ref(value), ()) if shape else ():
                yield from images(fiber, shape or (), target)

    def of_zeros(self, region: Region) -> Iterator[list[tuple[Leaf, Fiber]]]:
        """Yield leaves and fibers along which their means may be 0: one fiber, or all that fit.

        of one, of all that fit. Last each along its own fiber, where no image of one fiber is
        another's.
        """
        leaves = [leaf for leaf in region.leaves if leaf.v is not None and _may_be_centred(leaf)]
        if self._by_name_alone:
            named = self._claimed.keys()
            leaves = [leaf for leaf in leaves if leaf.u and self._before.ref(leaf.u) in named]
        for first in leaves:
            for fiber in self._axes(first):
                if not self._may_hold(first, fiber):
                    continue
                yield [(first, fiber)]
                others = (leaf for leaf in leaves if leaf is not first)
                placed = ((leaf, self._image(first, fiber, leaf)) for leaf in others)
                joint = [(leaf, place) for leaf, place in placed if place is not None]
                if joint:
                    yield [(first, fiber), *joint]
        own = ((leaf, leaf.relation.fiber) for leaf in leaves)
        shifted = [(leaf, fiber) for leaf, fiber in own if fiber and self._may_hold(leaf, fiber)]
        if len(shifted) > 1:
            yield shifted

    def _image(self, first: Leaf, fiber: Fiber, leaf: Leaf) -> Fiber | None:
        """Return the fiber along which a leaf may have mean 0 if the first has along its own."""
        image = next(iter(images(fiber, first.shape, leaf.shape)), None)
        return image if image is not None and self._may_hold(leaf, image) else None

    def _may_hold(self, leaf: Leaf, fiber: Fiber) -> bool:
        return leaf.v is not None and self._means.may_hold(leaf.v, fiber)

    def _axes(self, leaf: Leaf) -> list[Fiber]:
        """Return fibers along which a leaf may have mean 0: its own, a digit of it, whole axes."""
        ref = "" if leaf.u is None else self._before.ref(leaf.u)
        own = leaf.relation.fiber
        found = dict.fromkeys(() if own is None else (own, *(Fiber((b,)) for b in own.blocks)))
        found.update(dict.fromkeys(self._claimed.get(ref, ())))
        rank = len(leaf.shape)
        for axes in (
            *([axis] for axis in range(rank)[::-1]),
            *(list(range(first, rank)) for first in range(rank - 2, 0, -1)),
        ):
            fiber = whole_axes(leaf.shape, axes)
            if fiber is not None and fiber.size > 1:
                found[fiber] = None
        return list(found)


def _of_parts(fibers: Sequence[Fiber]) -> Iterator[Fiber]:
    """Yield the wider fibers in the parts of others: a value repeated along an axis has both."""
    for narrow in fibers:
        for wide in fibers if narrow.part is not None else ():
            if wide.part is None and set(narrow.blocks) <= set(wide.blocks):
                yield Fiber(wide.blocks, narrow.part)


def _may_be_centred(leaf: Leaf) -> bool:
    if leaf.u is None and leaf.fixed:
        return False
    return leaf.dtype in FLOATS


class Correspondence:
    """``originals``: the counterpart of each value of the rewritten model, by name first.

    A value with a new name corresponds to the original node's operand at this place, or to the
    result of the same operator whose name a downstream node now has; otherwise to the counterpart
    of the first input of equal shape of its own node, if the certificate calls it centered.
    """

    def __init__(self, before: ModelInfo, after: ModelInfo, certificate: Certificate):
        self._before, self._after = before, after
        known = before.by_ref()
        self.originals: dict[ir.Value, ir.Value] = {}
        for ref, value in after.by_ref().items():
            if ref in known:
                self.originals[value] = known[ref]
        self._named = frozenset(self.originals)
        self._name_copies(known)
        if not certificate.by_name_alone:
            self._guess({known.get(ref) for ref, _ in certificate.centred})
        self._constants = _constants(before) | _constants(after)

    def _guess(self, centred: Collection[ir.Value | None]) -> None:
        """Guess the counterparts of values with new names."""
        for graph in self._after.graphs:
            for node in reversed(graph):
                self._read_off(node)
        for node in self._after.nodes():
            self._stand_in(node, centred)

    def is_guess(self, value: ir.Value) -> bool:
        """Whether a value's name differs from its counterpart's."""
        return value not in self._named

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value of either model is computed only from constants."""
        return value in self._constants

    def _name_copies(self, known: Mapping[str, ir.Value]) -> None:
        """Match copies of constants, whose names extend the original's.

        A copy of "b" may be named "b.fused.2" though there is a "b.fused": its readers decide.
        """
        for ref, value in self._after.by_ref().items():
            if value in self.originals or not self._after.tensor(value):
                continue
            stems = [known[stem] for stem in _stems(ref) if stem in known]
            found = [old for old in stems if self._before.tensor(old) is not None]
            if found:
                read = set(self._read_instead(value)) if len(found) > 1 else set()
                self.originals[value] = next((old for old in found if old in read), found[0])

    def _read_instead(self, value: ir.Value) -> Iterator[ir.Value | None]:
        """Yield what the original nodes read in the places of a value of the rewritten model."""
        for use in value.uses():
            originals = (self.originals.get(output) for output in use.node.outputs)
            twin = next((u.producer() for u in originals if u is not None), None)
            if twin is not None and use.idx < len(twin.inputs):
                yield twin.inputs[use.idx]

    def _read_off(self, node: ir.Node) -> None:
        outputs = (self.originals.get(output) for output in node.outputs)
        twin = next((u.producer() for u in outputs if u is not None), None)
        if twin is None:
            return
        if twin.op_identifier() != node.op_identifier():
            self._read_through(node, twin)
            return
        inputs = pairs(twin, node)
        taken = {self.originals.get(new) for _, new in inputs if new is not None}
        free = [old for old, _ in inputs if old is not None and old not in taken]
        for old, new in inputs:
            if new is None or new in self.originals:
                continue
            guess = old if old in free or old is None or len(free) != 1 else free[0]
            if guess is not None and self._alike(guess, new):
                self.originals[new] = guess

    def _read_through(self, node: ir.Node, twin: ir.Node) -> None:
        """Match an operator whose name a new node after it has taken, as the Add of a bias."""
        for value in node.inputs:
            producer = producer_of(value)
            if value is None or producer is None or value in self.originals:
                continue
            guess = twin.outputs[value.index() or 0] if len(twin.outputs) == 1 else None
            same = producer.op_identifier() == twin.op_identifier()
            if guess is not None and same and self._alike(guess, value):
                self.originals[value] = guess

    def _stand_in(self, node: ir.Node, centred: Collection[ir.Value | None]) -> None:
        for output in node.outputs:
            if output in self.originals or not output.name:
                continue
            for operand in node.inputs:
                guess = None if operand is None else self.originals.get(operand)
                if guess in centred and guess and operand and self._same(operand, output):
                    self.originals[output] = guess
                    break

    def _alike(self, old: ir.Value, new: ir.Value) -> bool:
        return self._before.rank(old) == self._after.rank(new)

    def _same(self, operand: ir.Value, output: ir.Value) -> bool:
        first, second = self._after.shape(operand), self._after.shape(output)
        return self._after.tensor(operand) is None and (
            first is None or second is None or first == second
        )


def _stems(ref: str) -> Iterator[str]:
    """Yield the names that a name extends, the longest first."""
    stem = ref.rpartition("@")[0] or ref
    while "." in stem:
        stem = stem.rpartition(".")[0]
        yield stem


def _constants(view: ModelInfo) -> set[ir.Value]:
    """Return the values that depend only on constants, as far as they can be computed here."""
    found: set[ir.Value] = set()
    for node in view.nodes():
        operands = [v for v in node.inputs if v is not None]
        known = all(v in found or view.tensor(v) is not None for v in operands)
        fixed = operands and known and not bodies(node) and not is_stochastic(node)
        if fixed and is_supported(view.model, node):
            found.update(node.outputs)
    return found
