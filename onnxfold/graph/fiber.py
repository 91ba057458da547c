"""Fibers: the elements of a tensor over which a norm works, followed exactly through layouts.

A fiber is a partition of a tensor's elements into sets of equal size.  It is written as blocks
of axes: an axis of size n = outer * size * inner, read in row-major digits, contributes its
middle digit.  A whole axis has outer = inner = 1; a group norm's block of C = G * (C/G) channels
has outer = G, size = C/G, inner = 1.  The order of blocks does not matter for a mean, so equal
partitions have equal (canonical) fibers.

A fiber may cover only some of the sets, such as the sets of q among q, k and v.

Source: CBWC ("Enjoy your Layer Normalization ..."), where the fiber is the feature axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from onnxfold.graph.dims import ONE, Dim, Extent, Shape, extent


@dataclass(frozen=True, slots=True, order=True)
class AxisBlock:
    """The middle digit of an axis of dimension outer * size * inner (outer None if unknown)."""

    axis: int
    inner: int
    size: int
    outer: int | None

    @property
    def whole(self) -> bool:
        """Whether the block is its whole axis."""
        return self.inner == 1 and self.outer == 1

    def __str__(self) -> str:
        if self.whole:
            return f"axis {self.axis}"
        apart = "" if self.inner == 1 else f" that lie {self.inner} apart"
        return f"axis {self.axis} in groups of {self.size}{apart}"


@dataclass(frozen=True, slots=True)
class Part:
    """The sets whose index in ``digits``, most significant first, is in ``chosen``."""

    digits: tuple[AxisBlock, ...]
    chosen: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Fiber:
    """Blocks in canonical order; no blocks means sets of one element.

    ``part``: the sets that it covers, None for all; laws of operators assume all.
    """

    blocks: tuple[AxisBlock, ...]
    part: Part | None = None

    @staticmethod
    def of(blocks: Iterable[AxisBlock]) -> Fiber:
        """Return the canonical fiber: digits of size 1 dropped, adjacent digits merged."""
        merged: list[AxisBlock] = []
        for block in sorted(b for b in blocks if b.size != 1):
            last = merged[-1] if merged else None
            if last and last.axis == block.axis and last.inner * last.size == block.inner:
                merged[-1] = AxisBlock(block.axis, last.inner, last.size * block.size, block.outer)
            else:
                merged.append(block)
        return Fiber(tuple(merged))

    @property
    def size(self) -> int:
        """The number of elements in each set."""
        return prod(block.size for block in self.blocks)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of its blocks, ascending, each once."""
        return tuple(sorted({block.axis for block in self.blocks}))

    @property
    def whole(self) -> bool:
        """Whether every block is its whole axis."""
        return all(block.whole for block in self.blocks)

    @property
    def every(self) -> Fiber:
        """The same fiber over all sets."""
        return self if self.part is None else Fiber(self.blocks)

    @property
    def digits(self) -> tuple[AxisBlock, ...]:
        """The blocks, and the digits that separate its part from the other sets."""
        return self.blocks if self.part is None else (*self.blocks, *self.part.digits)

    def within(self, digits: Iterable[AxisBlock], chosen: Iterable[bool]) -> Fiber:
        """Return the fiber of the sets whose index in ``digits`` is chosen."""
        part = Part(tuple(digits), tuple(chosen))
        return Fiber(self.blocks, None if all(part.chosen) else part)

    def joined(self, other: Fiber) -> Fiber | None:
        """Return the fiber of the sets of both, or None if their digits differ."""
        mine, theirs = self.part, other.part
        if self.blocks != other.blocks:
            return None
        if mine is None or theirs is None:
            return self.every
        if mine.digits != theirs.digits:
            return None
        pairs = zip(mine.chosen, theirs.chosen, strict=True)
        return self.within(mine.digits, (a or b for a, b in pairs))

    def apart_from(self, other: Fiber) -> bool:
        """Whether no element is in sets of both, separated by one digit of one axis."""
        mine, theirs = self._chosen(), other._chosen()
        if mine is None or theirs is None or mine[0] != theirs[0]:
            return False
        return mine[1].isdisjoint(theirs[1])

    def _chosen(self) -> tuple[int, set[int]] | None:
        """Return the axis that separates a part from the rest, and its indices there, or None."""
        if self.part is None or len(self.part.digits) != 1:
            return None
        ((digit,), chosen) = self.part.digits, self.part.chosen
        if digit.outer != 1:
            return None
        sets = (number for number, taken in enumerate(chosen) if taken)
        places = (range(n * digit.inner, (n + 1) * digit.inner) for n in sets)
        return digit.axis, {place for each in places for place in each}

    def covers(self, other: Fiber) -> bool:
        """Whether every set of ``other`` is within one set of this fiber.

        A tensor that is constant along this fiber is then constant along ``other``.
        """
        return all(any(_contains(mine, theirs) for mine in self.blocks) for theirs in other.blocks)

    def __str__(self) -> str:
        blocks = " and ".join(map(str, self.blocks)) or "no axis"
        return blocks if self.part is None else f"{blocks} of a part"


def _contains(mine: AxisBlock, theirs: AxisBlock) -> bool:
    """Whether, among digits of one axis, theirs is a run of digits inside mine."""
    if mine.axis != theirs.axis or theirs.inner % mine.inner:
        return False
    end_mine, end_theirs = mine.inner * mine.size, theirs.inner * theirs.size
    return end_theirs <= end_mine and end_mine % end_theirs == 0


def whole_axes(shape: Shape, axes: Iterable[int]) -> Fiber | None:
    """Return the fiber of whole axes, or None if one of them has an unknown size."""
    blocks = []
    for axis in axes:
        dim = shape[axis]
        if not isinstance(dim, int) or dim < 1:
            return None
        blocks.append(AxisBlock(axis % len(shape), 1, dim, 1))
    return Fiber.of(blocks)


def follow_reshape(fiber: Fiber, source: Shape, target: Shape) -> Fiber | None:
    """Return the same partition in the coordinates of a reshaped tensor.

    Row-major order survives a Reshape, so a digit is found again by the product of the sizes right
    of it (its stride) or left of it; either suffices, and both may be symbolic. Returns None if the
    digit cannot be located exactly.
    """
    if 0 in source or 0 in target:
        return None
    blocks: list[AxisBlock] = []
    for block in fiber.blocks:
        placed = _from_right(block, source, target) or _from_left(block, source, target)
        if placed is None:
            return None
        blocks += placed
    return Fiber.of(blocks)


def _from_right(block: AxisBlock, source: Shape, target: Shape) -> list[AxisBlock] | None:
    right = extent(source[block.axis + 1 :])
    if right is None:
        return None
    axes = list(enumerate(target))[::-1]
    placed = _place(axes, right * Extent(block.inner), block.size)
    if placed is None:
        return None
    return [AxisBlock(axis, near, size, far) for axis, near, size, far in placed]


def _from_left(block: AxisBlock, source: Shape, target: Shape) -> list[AxisBlock] | None:
    left = extent(source[: block.axis])
    if left is None or block.outer is None:
        return None
    placed = _place(list(enumerate(target)), left * Extent(block.outer), block.size)
    if placed is None or any(far is None for *_, far in placed):
        return None
    return [AxisBlock(axis, far or 1, size, near) for axis, near, size, far in placed]


_Digit = tuple[int, int, int, int | None]  # axis, part before the digit, size, part after it


def _place(axes: Sequence[tuple[int, Dim]], start: Extent, size: int) -> list[_Digit] | None:
    """Walk ``axes`` from one side and extract the digits [start, start * size)."""
    digits: list[_Digit] = []
    passed, remaining, started = ONE, size, False
    for position, (axis, dim) in enumerate(axes):
        if remaining == 1:
            break
        near = 1
        if not started:
            step = _approach(passed, start, dim)
            if step is None:
                return None
            if step == 0:
                passed = passed * (extent([dim]) or ONE)
                continue
            near, started = step, True
        if not isinstance(dim, int):
            # A symbolic axis surely contains the digit only if nothing else lies beyond it.
            if any(other != 1 for _, other in axes[position + 1 :]):
                return None
            return [*digits, (axis, near, remaining, None)]
        if dim % near:
            return None
        available = dim // near
        if available and remaining % available == 0:
            digits.append((axis, near, available, 1))
            remaining //= available
        elif available and available % remaining == 0:
            digits.append((axis, near, remaining, available // remaining))
            remaining = 1
        else:
            return None
    return digits if remaining == 1 else None


def _approach(passed: Extent, start: Extent, dim: Dim) -> int | None:
    """Return 0 to pass the axis, the part before the digit if it begins here, None to fail."""
    here = extent([dim])
    if passed.symbols == start.symbols:
        if start.factor % passed.factor:
            return None
        quotient = start.factor // passed.factor
        if isinstance(dim, int) and quotient % dim == 0:
            return 0
        return quotient
    if here is None:
        return None
    return 0 if _divides(passed * here, start) else None


def _divides(divisor: Extent, number: Extent) -> bool:
    symbols = list(number.symbols)
    for symbol in divisor.symbols:
        if symbol not in symbols:
            return False
        symbols.remove(symbol)
    return number.factor % divisor.factor == 0
