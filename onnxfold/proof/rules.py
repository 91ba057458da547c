"""Numeric tests of a region: which relation its outputs have for all inputs that are related.

A relation counts when it held for random float64 inputs of three magnitudes and, where a dimension
is symbolic, for two choices of all sizes.  What is compared are float64 sums and quotients of the
same numbers in another order: they differ by roundings of 2^-53, a few thousand of them at most,
while a wrong rule is off by the order of the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from onnxfold.errors import OnnxfoldError
from onnxfold.graph import AxisBlock, Fiber, Shape, follow_reshape
from onnxfold.proof.region import Pair, Region, Unprovable
from onnxfold.proof.relation import EQUAL, Float64, Relation, completed, means
from onnxfold.proof.sizes import SAMPLINGS, Sizes

__all__ = ["Tester", "images", "is_small", "shortened"]

_TOLERANCE = 2.0**-38  # 2^15 roundings
_SNAP = 2.0**-42
_ALIKE = 2.0**-30
_SCALES = (2.0**-10, 2.0**5)
_LIKE_FIRST = 4
_FEW = 256
_MORE = 40
_MANY = 1 << 14  # elements of which one draw at each magnitude is enough
_MOST_IMAGES = 24
_MOSTLY = 0.75
_Bools = npt.NDArray[np.bool_]
_Shown = dict[tuple[int, ...], _Bools]  # by shape, whether an element was finite in a draw
_ERRORS = (OnnxfoldError, Unprovable, ArithmeticError, LookupError, ValueError)


@dataclass(frozen=True, slots=True)
class _Question:
    """Which relation a region has, of those whose parameters are named; and of lines, if asked."""

    region: Region
    slack: float
    whole: bool
    fibers: tuple[Fiber, ...] = ()
    lines: bool = False


class Tester:
    """Runs tests and remembers them, so that equal layers cost one.

    ``whole``: regions that cannot be run on smaller tensors are run on those of the model.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._known: dict[object, object] = {}

    def relation(self, region: Region, fibers: tuple[Fiber, ...], slack: float) -> Relation | None:
        """Return a relation of the outputs, the strongest found; None for none.

        ``fibers``: candidates for what a shift is constant along; ``slack``: what the roundings of
        stored constants may move the outputs by.
        """
        named = self._remembered(_Question(region, slack, self._whole, fibers))
        return named or self._remembered(_Question(region, slack, self._whole, lines=True))

    def exact(self, region: Region, slack: float) -> Relation | None:
        """Return whether the outputs are equal, or one is the other without an element, or None."""
        return self._remembered(_Question(region, slack, self._whole))

    def may_be_exact(self, region: Region, slack: float) -> bool:
        """Whether one draw leaves it open that ``exact`` finds something."""
        key = ("first", region.key, slack)
        if key not in self._known:
            self._known[key] = _first_leaves_open(_Question(region, slack, self._whole))
        return bool(self._known[key])

    def _remembered(self, asked: _Question) -> Relation | None:
        key = ("relation", asked.region.key, asked.fibers, asked.slack, asked.lines)
        if key not in self._known:
            self._known[key] = _relation(asked)
        found = self._known[key]
        return found if isinstance(found, Relation) else None

    def zero_mean(self, region: Region, fiber: Fiber) -> bool:
        """Whether v has mean 0 along the fiber."""
        key = ("mean", region.key, fiber)
        if key not in self._known:
            self._known[key] = _zero_mean(region, fiber)
        return bool(self._known[key])


@dataclass(frozen=True, slots=True)
class _Draws:
    """Outputs of a region for random inputs of one choice of sizes."""

    sizes: Sizes
    pairs: list[Pair]


def _samples(
    region: Region,
    fibers: tuple[Fiber, ...] = (),
    *,
    whole: bool = False,
    at_first: int = _LIKE_FIRST,
) -> Iterator[_Draws]:
    """Yield the outputs of several draws, for two choices of the symbolic sizes; some at first.

    A third choice lies behind the positions that the region may count.  ``whole``: on tensors of
    full size, where smaller ones do not fit.  Raises Unprovable where the region cannot be
    computed for any.
    """
    symbolic = bool(region.symbols)
    wanted, problem = 1 + symbolic, "no sizes fit"
    for number, numbers in enumerate((*SAMPLINGS, ()) if symbolic else SAMPLINGS[:1]):
        if not wanted:
            break
        rng, sizes = np.random.default_rng(number), region.sizes(numbers, fibers)
        try:
            first = _first(region, sizes, rng, at_first)
        except _ERRORS as error:
            problem = str(error)
            sizes_of_the_model = region.sizes(numbers, whole=True)
            if not sizes.reduced or not (whole or region.is_quick(sizes_of_the_model)):
                continue
            try:
                first = _first(region, sizes_of_the_model, rng, at_first)
            except _ERRORS:
                continue
        wanted -= 1
        yield from _with_more(region, first, rng, at_first)
    if wanted == 1 + symbolic:
        raise Unprovable(problem)
    if symbolic and region.far:
        for first in _far(region, fibers):
            yield from _with_more(region, first, np.random.default_rng(0), at_first)


def _far(region: Region, fibers: tuple[Fiber, ...]) -> list[_Draws]:
    """Return draws in which symbolic axes reach behind what may be a position along them.

    All do, or one at a time.  Raises Unprovable where the region cannot be computed for such.
    """
    problem = ""
    for choices in region.far_sizes(fibers):
        rng = np.random.default_rng(len(SAMPLINGS))
        try:
            return [_first(region, sizes, rng, 1) for sizes in choices]
        except _ERRORS as error:
            problem = str(error)
    raise Unprovable(problem)


def _first(region: Region, sizes: Sizes, rng: np.random.Generator, count: int) -> _Draws:
    return _Draws(sizes, [region.outputs(*region.drawn(sizes, rng, 1.0)) for _ in range(count)])


def _with_more(
    region: Region, first: _Draws, rng: np.random.Generator, at_first: int
) -> Iterator[_Draws]:
    yield first
    # Few elements are drawn more often: each may be cut off by a Relu, or a mask.
    size = first.pairs[0][1].size
    more = min(_MORE, _FEW // max(1, size)) + (size < _MANY) * (_LIKE_FIRST - at_first)
    drawn = (region.drawn(first.sizes, rng, scale) for scale in (*_SCALES, *[1.0] * more))
    yield _Draws(first.sizes, [region.outputs(*values) for values in drawn])


@np.errstate(all="ignore")
def _zero_mean(region: Region, fiber: Fiber) -> bool:
    try:
        return all(
            is_small(means(v, draws.sizes.fiber(fiber)), v)
            for draws in _samples(region, (fiber,), at_first=1)
            for _, v in draws.pairs
        )
    except _ERRORS:
        return False


def shortened(long: tuple[int, ...], short: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axis along which alone a shape is longer, by one element; () where none is."""
    if len(long) != len(short):
        return ()
    axes = tuple(axis for axis, size in enumerate(short) if long[axis] != size)
    return axes if len(axes) == 1 and long[axes[0]] == short[axes[0]] + 1 else ()


def is_small(error: Float64, *sizes: Float64, slack: float = 0.0) -> bool:
    if error.size == 0:
        return True
    bound = _TOLERANCE * max(float(np.max(np.abs(size), initial=0)) for size in sizes) + slack
    return bool(np.all(np.abs(error) <= bound))  # NaN and inf are not


@np.errstate(all="ignore")
def _relation(asked: _Question) -> Relation | None:
    """Keep the relations that every sample has, of those that the first ones have."""
    open_: list[Relation] | None = None
    shown: _Shown = {}
    at_first = _LIKE_FIRST if asked.lines else 1
    try:
        fibers, whole = asked.fibers, asked.whole
        for draws in _samples(asked.region, fibers, whole=whole, at_first=at_first):
            _show(shown, draws)
            if open_ is None:
                open_ = list(_found(asked, draws.pairs))
            open_ = [found for found in open_ if _all_have(found, draws, asked.slack)]
            if not open_:
                return None
        if open_ and not _shows_enough(shown):
            # What is not finite is shown where a constant alone makes it so in both models.
            plain = asked.region.all_finite()
            for draws in _samples(plain, fibers, whole=whole) if plain else ():
                _show(shown, draws)
    except _ERRORS:
        return None
    return open_[0] if open_ and _shows_enough(shown) else None


@np.errstate(all="ignore")
def _first_leaves_open(asked: _Question) -> bool:
    try:
        draws = next(_samples(asked.region, whole=asked.whole, at_first=1))
        found = _found(asked, draws.pairs)
        return any(_all_have(relation, draws, asked.slack) for relation in found)
    except _ERRORS:
        return False


def _show(shown: _Shown, draws: _Draws) -> None:
    """Add the elements that were finite in both models in some draw."""
    for u, v in draws.pairs:
        finite = np.isfinite(v) & (np.isfinite(u) if u.shape == v.shape else np.True_)
        shown[v.shape] = shown.get(v.shape, np.False_) | finite


def _shows_enough(shown: _Shown) -> bool:
    """Whether elements were finite in some draw: two NaN, roots of what is negative, show nothing.

    All where few elements are drawn often; of many, drawn few times, some never are.
    """
    return all(
        bool(each.all()) if each.size <= _FEW else bool(each.mean() > _MOSTLY)
        for each in shown.values()
    )


def _found(asked: _Question, draws: list[Pair]) -> Iterator[Relation]:
    u, v = draws[0]
    if not asked.lines:
        yield EQUAL
        yield from (Relation(short=axis) for axis in shortened(u.shape, v.shape))
        yield from (Relation(short=axis, reverse=True) for axis in shortened(v.shape, u.shape))
    if any(
        u.size == 0 or u.shape != v.shape or u.dtype.kind != "f" or v.dtype.kind != "f"
        for u, v in draws
    ):
        return
    yield from (Relation(fiber=fiber) for fiber in asked.fibers)
    for reverse in (False, True) if asked.lines else ():
        line = _line([(v, u) if reverse else (u, v) for u, v in draws], asked.slack)
        if line is not None:
            yield Relation(*line, reverse)


def _all_have(relation: Relation, draws: _Draws, slack: float) -> bool:
    there = relation.of(draws.sizes)
    return all(_has(there, *pair, slack) for pair in draws.pairs)


def _has(relation: Relation, u: Float64, v: Float64, slack: float) -> bool:
    """Whether two values have a relation; what is not finite has none but equality."""
    if relation.equal:
        return _same(u, v, slack)
    if not (np.isfinite(u).all() and np.isfinite(v).all()):
        return False
    if relation.short is not None:
        long, short = (v, u) if relation.reverse else (u, v)
        fits = shortened(long.shape, short.shape) == (relation.short,)
        return fits and is_small(long - completed(short, relation.short), long, short)
    if relation.fiber is not None:
        return _is_shift(u, v, relation.fiber)
    if relation.r is None or relation.s is None:
        return False
    a, b = (v, u) if relation.reverse else (u, v)
    if not _fits(relation.r, a):
        return False
    return is_small(a - relation.r * b - relation.s, a, relation.r * b, relation.s, slack=slack)


def _same(u: Float64, v: Float64, slack: float) -> bool:
    if u.shape != v.shape or u.dtype.kind != v.dtype.kind:
        return False
    if u.dtype.kind != "f":
        return np.array_equal(u, v)
    finite = np.isfinite(u) & np.isfinite(v)
    if not np.array_equal(u[~finite], v[~finite], equal_nan=True):
        return False
    a, b = u[finite], v[finite]
    return is_small(a - b, a, b, slack=slack * max(1.0, float(np.max(np.abs(b), initial=0))))


def _is_shift(u: Float64, v: Float64, fiber: Fiber) -> bool:
    try:
        difference = u - v
        return is_small(difference - means(difference, fiber), u, v)
    except OnnxfoldError:
        return False


def _fits(r: Float64, u: Float64) -> bool:
    return all(a in (1, b) for a, b in zip(r.shape, u.shape, strict=True))


def _line(draws: list[Pair], slack: float) -> tuple[Float64, Float64] | None:
    """Return r and s of u = r * v + s by least squares for every element; axes alike are one.

    What the roundings of stored constants may make of 1 and 0 is taken for these.
    """
    u, v = (np.stack([pair[side] for pair in draws]) for side in (0, 1))
    each = _slope(u, v, (0,), slack)
    axes = (0, *(axis for axis in range(1, u.ndim) if _is_constant(each, axis - 1)))
    r, s = _slope(u, v, axes, slack)
    if len(axes) == 1 or not _is_line(u, v, r, s):
        r, s = _widest(u, v, each, slack)
    return (r, s) if np.isfinite(r).all() and np.isfinite(s).all() else None


def _widest(
    u: Float64, v: Float64, each: tuple[Float64, Float64], slack: float
) -> tuple[Float64, Float64]:
    """Return r and s with the axes joined along which one line fits; elements may be still."""
    axes: tuple[int, ...] = (0,)
    found = each
    for axis in range(1, u.ndim):
        wider = _slope(u, v, (*axes, axis), slack)
        if _is_line(u, v, *wider):
            axes, found = (*axes, axis), wider
    return found


def _is_constant(parameters: tuple[Float64, Float64], axis: int) -> bool:
    """Whether r and s seem to be one number along an axis: a guess, at which one looks again."""
    first = (a.take([0], axis=axis) for a in parameters)
    return all(
        bool(np.all(np.abs(a - b) <= _ALIKE * (1 + np.abs(b))))
        for a, b in zip(parameters, first, strict=True)
    )


def _is_line(u: Float64, v: Float64, r: Float64, s: Float64) -> bool:
    return is_small(u - r * v - s, u, r * v, s)


def _slope(u: Float64, v: Float64, axes: tuple[int, ...], slack: float) -> tuple[Float64, Float64]:
    mean_u, mean_v = (a.mean(axis=axes, keepdims=True) for a in (u, v))
    moved = v - mean_v
    spread = (moved * moved).sum(axis=axes, keepdims=True)
    still = spread <= 2.0**-80 * float(np.max(v * v, initial=0))
    with np.errstate(all="ignore"):
        r = (moved * (u - mean_u)).sum(axis=axes, keepdims=True) / spread
    r = np.where(still, 1.0, r)
    r = np.where(np.abs(r - 1) <= _SNAP + slack, 1.0, r)
    s = mean_u - r * mean_v
    least = _SNAP * float(np.max(np.abs(u), initial=0)) + slack
    s = np.where(np.abs(s) <= least, 0.0, s)
    return r[0], s[0]


def images(fiber: Fiber, source: Shape, target: Shape) -> Iterator[Fiber]:
    """Yield fibers of another tensor that may be the same partition: by digits, places, sizes."""
    found: dict[Fiber, None] = {}
    whole = follow_reshape(fiber, source, target) if None not in (source, target) else None
    if whole is not None and _are_digits(whole.blocks):  # not so where it is no reshape
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
    # What is repeated along an axis is constant there, whatever it is.
    repeated = list(images(Fiber(kept), source, target)) if missing or single else []
    yield from dict.fromkeys((*repeated, *found) if single else (*found, *repeated))


def _are_digits(blocks: Iterable[AxisBlock]) -> bool:
    """Whether the blocks of each axis are digits of one number, none within another."""
    ordered = sorted(blocks, key=lambda block: (block.axis, block.inner))
    return all(
        first.axis != second.axis or second.inner % (first.inner * first.size) == 0
        for first, second in pairwise(ordered)
    )


def _places(block: AxisBlock, source: Shape, target: Shape) -> Iterator[AxisBlock]:
    """Yield where a digit may be: on the same axis from the right, then on axes of its size."""
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
