"""Guesses of fibers along which a region's outputs may be shifted, or its leaves have mean 0."""

from collections.abc import Iterator, Mapping, Sequence

from onnxfold.graph import FLOATS, Fiber, ModelInfo, Shape, whole_axes
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
