"""Values of the rewritten model with mean 0 along a fiber, proved backward, down to weights."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise, product

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, Shape, follow_reshape
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.region import Region
from onnxfold.proof.stored import fits, has_zero_mean, largest
from onnxfold.proof.tester import Tester
from onnxfold.proof.widening import Widening

Point = tuple[ir.Value, Fiber]
_Choice = list[tuple[Leaf, Fiber]]
_MOST_CHOICES = 12
# How many nodes deep regions are: most means follow from one node at a time, in small regions.
_DEPTHS = ((1,), (1, 2, 3))
_MOST_IMAGES = 24


class ZeroMeans:
    """Facts about means in the rewritten model.

    A value has mean 0 if its computation yields mean 0 for all inputs, or for all inputs with mean
    0 along certain fibers, which its actual inputs have. Trials find these inputs.
    """

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        tester: Tester,
        widening: Widening,
        region_of: Callable[[ir.Value, int], Region],
        original: Callable[[ir.Value], ir.Value | None],
        claimed: Mapping[str, Sequence[Fiber]],
    ):
        self._before, self._after, self._tester = before, after, tester
        self._widening, self._region_of, self._original = widening, region_of, original
        self._claimed = claimed
        self._known: dict[Point, bool] = {}
        self._failed: set[tuple[Point, tuple[int, ...]]] = set()
        self._stored: set[Point] = set()

    def note_stored(self, value: ir.Value, fiber: Fiber) -> None:
        """Record that the stored numbers of a weight have mean 0, up to their own roundings."""
        self._stored.add((value, fiber))

    def holds(self, value: ir.Value, fiber: Fiber) -> bool:
        """Whether the value's mean along the fiber is 0."""
        return any(self._is_shown((value, fiber), depths) for depths in _DEPTHS)

    def _is_shown(self, asked: Point, depths: tuple[int, ...]) -> bool:
        """Whether regions of these depths prove the mean of a point, and the means that it needs.

        A graph may be thousands of nodes deep, so searches wait for one another on a list.
        """
        answer = self._answer(asked, depths)
        waiting = [] if answer is not None else [(asked, self._search(asked, depths))]
        while waiting:
            point, search = waiting[-1]
            try:
                needed = search.send(answer)
            except StopIteration as ended:
                waiting.pop()
                answer = self._note(point, depths, shown=ended.value)
            else:
                answer = self._answer(needed, depths)
                if answer is None:
                    waiting.append((needed, self._search(needed, depths)))
        return bool(answer)

    def _answer(self, point: Point, depths: tuple[int, ...]) -> bool | None:
        """Return the known answer for a point, or None."""
        if self._known.get(point):
            return True
        return False if (point, depths) in self._failed else None

    def _note(self, point: Point, depths: tuple[int, ...], *, shown: bool) -> bool:
        if shown:
            self._known[point] = True
        else:
            self._failed.add((point, depths))
        return shown

    def _search(self, point: Point, depths: tuple[int, ...]) -> Generator[Point, bool | None, bool]:
        """Yield points, receive whether each has mean 0, and return whether this one has.

        All points of one choice must have it. They are upstream of this one.
        """
        for needed in self._needed(point, depths):
            for each in needed:
                if not (yield each):
                    break
            else:
                return True
        return False

    def may_hold(self, value: ir.Value, fiber: Fiber) -> bool:
        """Whether the mean may be 0: for a stored constant it is known."""
        tensor = self._after.tensor(value)
        return tensor is None or self._is_centred(value, tensor, fiber)

    def _needed(self, point: Point, depths: tuple[int, ...]) -> Iterator[tuple[Point, ...]]:
        """Yield choices of points: this one has mean 0 if all points of a choice have."""
        value, fiber = point
        tensor = self._after.tensor(value)
        if tensor is not None:
            if self._is_centred(value, tensor, fiber):
                yield ()
            return
        if value.producer() is None:
            return
        for region, choice in self._trials(list(self._regions(value, depths)), fiber):
            if self._tester.zero_mean(with_zeros(region, choice), fiber):
                yield tuple((leaf.v, zero) for leaf, zero in choice if leaf.v is not None)

    def _regions(self, value: ir.Value, depths: Iterable[int]) -> Iterator[Region]:
        for depth in depths:
            try:
                yield self._region_of(value, depth)
            except Unprovable:
                continue

    def _trials(self, regions: list[Region], fiber: Fiber) -> Iterator[tuple[Region, _Choice]]:
        """Yield regions with leaves whose mean may be 0: stored ones, none, then any."""
        places = [(region, self._places(region, fiber)) for region in regions]
        for region, found in places:  # for a large layer small tensors are enough
            stored = (choices for choices in found if self._is_stored(choices[0][0]))
            firsts = [first for choices in stored for first in islice(self._open(choices), 1)]
            if firsts:
                yield region, firsts
        yield from ((region, []) for region in regions)
        for region, found in places:
            left = [choices for each in found if (choices := list(self._open(each)))]
            for choice in islice(self._choices(left), _MOST_CHOICES):
                yield region, choice

    def _open(self, places: _Choice) -> Iterator[tuple[Leaf, Fiber]]:
        """Yield the fibers along which the numbers of a leaf, if they are stored, have mean 0."""
        for leaf, place in places:
            if leaf.v is not None and self.may_hold(leaf.v, place):
                yield leaf, place

    def _choices(self, found: list[_Choice]) -> Iterator[_Choice]:
        """Yield leaves that may have mean 0: one, constants first, all constants, then all."""
        yield from ([choice] for places in found for choice in places)
        stored = [places for places in found if self._is_stored(places[0][0])]
        if 1 < len(stored) < len(found):  # a weight and its bias, for any input of the layer
            yield [places[0] for places in stored]
        if len(found) > 1:
            yield [places[0] for places in found]

    def _places(self, region: Region, fiber: Fiber) -> list[_Choice]:
        """Return where each leaf may have mean 0 if its numbers were unknown, constants first."""
        target = self._after.shape(region.pair[1])
        found: list[_Choice] = []
        for leaf in region.leaves if target is not None else ():
            if leaf.v is None or (leaf.dtype is not None and not leaf.dtype.is_floating_point()):
                continue
            lesser = (Fiber((block,)) for block in fiber.blocks if len(fiber.blocks) > 1)
            placed = (images(each, target or (), leaf.shape) for each in (fiber, *lesser))
            near = dict.fromkeys((*self._parts(leaf.v, fiber), *chain.from_iterable(placed)))
            places = [(leaf, place) for place in near]
            places.sort(key=lambda place: _unlikely(place[1]))
            if self._is_stored(leaf):
                places.sort(key=lambda place: place[1].size != 1)  # 0 has every mean
            if places:
                found.append(places)
        return sorted(found, key=lambda places: not self._is_stored(places[0][0]))

    def _parts(self, value: ir.Value, fiber: Fiber) -> list[Fiber]:
        """Return the parts of its sets along which a value is claimed to have mean 0."""
        u = self._original(value)
        claimed = () if u is None else self._claimed.get(self._before.ref(u), ())
        return [each for each in claimed if each.part is not None and each.size == fiber.size]

    def _is_stored(self, leaf: Leaf) -> bool:
        return self._after.tensor(leaf.v) is not None

    def _is_centred(self, value: ir.Value, tensor: ir.TensorProtocol, fiber: Fiber) -> bool:
        if (value, fiber) not in self._known:
            floats = tensor.dtype.is_floating_point() and tensor.size > 0
            self._known[value, fiber] = (
                floats and fits(fiber, tensor) and self._mean_is_zero(value, tensor, fiber)
            )
        return self._known[value, fiber]

    def _mean_is_zero(self, value: ir.Value, tensor: ir.TensorProtocol, fiber: Fiber) -> bool:
        wide = self._widening.reader_of(value, tensor.dtype)
        if wide is not None:  # with roundings smaller than the stored numbers'
            return has_zero_mean(tensor, fiber, dtype=wide.dtype)
        if (value, fiber) in self._stored or has_zero_mean(tensor, fiber):
            return True
        original = self._original(value)
        old = None if original is None else self._before.tensor(original)
        return old is not None and has_zero_mean(tensor, fiber, largest(old))


def _unlikely(fiber: Fiber) -> tuple[bool, int]:
    """Rank the places of a fiber: last if only 0 has mean 0 there; first if made of whole axes."""
    return fiber.size == 1, sum((block.inner, block.outer) != (1, 1) for block in fiber.blocks)


def with_zeros(region: Region, choice: Iterable[tuple[Leaf, Fiber]]) -> Region:
    """Return the region with leaves drawn with mean 0; constants among them are drawn as well."""
    zeros = {id(leaf): fiber for leaf, fiber in choice}
    leaves = [leaf.with_zero(zeros[id(leaf)]) if id(leaf) in zeros else leaf
              for leaf in region.leaves]  # fmt: skip
    leaves.sort(key=lambda leaf: (not leaf.fixed, leaf.zero is None))  # the least free first
    return replace(region, leaves=tuple(leaves))


def images(fiber: Fiber, source: Shape, target: Shape) -> Iterator[Fiber]:
    """Yield fibers of another tensor that may be the same partition, by digits, places or sizes.

    They cover all sets there, even if the fiber covers only a part.
    """
    fiber = fiber.every
    found: dict[Fiber, None] = {}
    whole = follow_reshape(fiber, source, target) if None not in (source, target) else None
    if whole is not None and _are_digits(whole.blocks):  # not if it is not a reshape
        found[whole] = None
    places = [list(_places(block, source, target)) for block in fiber.blocks]
    for number, blocks in enumerate(product(*places)):
        if number > _MOST_IMAGES:
            break
        axes = {block.axis for block in blocks}
        if len(axes) == len(fiber.axes) and _are_digits(blocks):
            found[Fiber.of(blocks)] = None
    for axis, dim in enumerate(target):
        if dim == fiber.size:
            found[Fiber((AxisBlock(axis, 1, fiber.size, 1),))] = None
    offset = len(source) - len(target)
    missing = [b for b in fiber.blocks if b.axis < offset]
    single = [b for b in fiber.blocks if b.axis >= offset and target[b.axis - offset] == 1]
    kept = tuple(b for b in fiber.blocks if b not in missing and b not in single)
    # A value repeated along an axis is constant there.
    repeated = list(images(Fiber(kept), source, target)) if missing or single else []
    yield from dict.fromkeys((*repeated, *found) if single else (*found, *repeated))


def _are_digits(blocks: Iterable[AxisBlock]) -> bool:
    """Whether the blocks of each axis are digits of one number, without nesting."""
    ordered = sorted(blocks, key=lambda block: (block.axis, block.inner))
    return all(
        first.axis != second.axis or second.inner % (first.inner * first.size) == 0
        for first, second in pairwise(ordered)
    )


def _places(block: AxisBlock, source: Shape, target: Shape) -> Iterator[AxisBlock]:
    """Yield places of a digit: on the same axis from the right, then on axes of its size."""
    own = source[block.axis]
    aligned = block.axis + len(target) - len(source)
    order = sorted(range(len(target)), key=lambda axis: (axis != aligned, axis != block.axis, axis))
    run = block.inner * block.size
    for axis in order:
        dim = target[axis]
        if dim == own and own is not None:
            yield AxisBlock(axis, block.inner, block.size, block.outer)
        elif isinstance(dim, int) and dim and dim % run == 0:
            yield AxisBlock(axis, block.inner, block.size, dim // run)
        elif dim == block.size:
            yield AxisBlock(axis, 1, block.size, 1)
