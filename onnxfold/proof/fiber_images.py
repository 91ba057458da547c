"""Guesses for the image of a fiber in another tensor, which are all tested."""

from collections.abc import Iterable, Iterator
from itertools import pairwise, product

from onnxfold.graph import AxisBlock, Fiber, Shape, follow_reshape

_MOST_IMAGES = 24


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
