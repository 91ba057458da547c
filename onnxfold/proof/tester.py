"""Numeric tests of a region: which relation its outputs have for all inputs that are related.

A relation counts when it held for random float64 inputs of three magnitudes and, where a dimension
is symbolic, for two choices of all sizes.  What is compared are float64 sums and quotients of the
same numbers in another order: they differ by roundings of 2^-53, a few thousand of them at most,
while a wrong rule is off by the order of the numbers themselves.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import OnnxfoldError
from onnxfold.graph import Fiber
from onnxfold.proof.draws import ERRORS, FEW, LIKE_FIRST, Draws, samples
from onnxfold.proof.lines import line
from onnxfold.proof.placeholders import with_placeholders
from onnxfold.proof.region import Pair, Region
from onnxfold.proof.relation import (
    ANY,
    EQUAL,
    Float64,
    Relation,
    Turn,
    completed,
    is_small,
    means,
    shortened,
)
from onnxfold.proof.roundings import rounds_more
from onnxfold.weights.rotations import rotated

_MOSTLY = 0.75
_Bools = npt.NDArray[np.bool_]
_Shown = dict[tuple[int, ...], _Bools]  # by shape, whether an element was finite in a draw


@dataclass(frozen=True, slots=True)
class _Question:
    """Which relation a region has, of those whose parameters are named; and of lines, if asked."""

    region: Region
    slack: float
    whole: bool
    fibers: tuple[Fiber, ...] = ()
    lines: bool = False
    turns: tuple[Turn, ...] = ()

    @property
    def asked_fibers(self) -> tuple[Fiber, ...]:
        """All fibers along which something is asked."""
        return (*self.fibers, *(turn.fiber for turn in self.turns))


class Tester:
    """Runs tests and remembers them, so that equal layers cost one.

    ``whole``: regions that cannot be run on smaller tensors are run on those of the model.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._known: dict[object, object] = {}

    def relation(
        self,
        region: Region,
        fibers: tuple[Fiber, ...],
        slack: float,
        turns: tuple[Turn, ...] = (),
    ) -> Relation | None:
        """Return a relation of the outputs, the strongest found; None for none.

        One that is not known is none that a wider region could show either.
        ``fibers``: candidates for what a shift is constant along, ``turns``: for rotations;
        ``slack``: what the roundings of stored constants may move the outputs by.
        """
        named = self._remembered(_Question(region, slack, self._whole, fibers, turns=turns))
        return named or self._line(region, slack)

    def _line(self, region: Region, slack: float) -> Relation | None:
        """Return u = r * v + s, where possible by a test that other numbers share.

        What that says of the numbers at hand, one draw of these confirms.
        """
        shared = None if slack else with_placeholders(region)
        if shared is not None:
            found = self._remembered(_Question(shared.region, slack, self._whole, lines=True))
            if found is not None and not found.known:
                return found
            resolved = None if found is None else shared.resolved(found)
            if resolved is not None and _at_first(_Question(region, 0.0, self._whole), [resolved]):
                return resolved
        return self._remembered(_Question(region, slack, self._whole, lines=True))

    def exact(self, region: Region, slack: float) -> Relation | None:
        """Return whether the outputs are equal, or one is the other without an element, or None."""
        return self._remembered(_Question(region, slack, self._whole))

    def runs(self, region: Region) -> bool:
        """Whether sizes are found at which the region can be run: means of 0 change nothing."""
        key = ("runs", region.key)
        if key not in self._known:
            self._known[key] = _runs(region, whole=self._whole)
        return bool(self._known[key])

    def may_be_exact(self, region: Region, slack: float) -> bool:
        """Whether one draw leaves it open that ``exact`` finds something."""
        key = ("first", region.key, slack)
        if key not in self._known:
            self._known[key] = _at_first(_Question(region, slack, self._whole))
        return bool(self._known[key])

    def _remembered(self, asked: _Question) -> Relation | None:
        turns = tuple(turn.key for turn in asked.turns)
        key = ("relation", asked.region.key, asked.fibers, asked.slack, asked.lines, turns)
        if key not in self._known:
            self._known[key] = _relation(asked)
        found = self._known[key]
        return found if isinstance(found, Relation) else None

    def rounds_more(self, region: Region) -> str | None:
        """Say on which rows the rewritten model rounds more than the original, if on any."""
        key = ("rounding", region.key)
        if key not in self._known:
            self._known[key] = rounds_more(region)
        found = self._known[key]
        return found if isinstance(found, str) else None

    def zero_mean(self, region: Region, fiber: Fiber) -> bool:
        """Whether v has mean 0 along the fiber."""
        key = ("mean", region.key, fiber)
        if key not in self._known:
            self._known[key] = _zero_mean(region, fiber)
        return bool(self._known[key])


@np.errstate(all="ignore")
def _runs(region: Region, *, whole: bool) -> bool:
    try:
        next(samples(region, whole=whole, at_first=1))
    except ERRORS:
        return False
    return True


@np.errstate(all="ignore")
def _zero_mean(region: Region, fiber: Fiber) -> bool:
    try:
        return all(
            is_small(means(v, draws.sizes.fiber(fiber)), v)
            for draws in samples(region, (fiber,), at_first=1)
            for _, v in draws.pairs
        )
    except ERRORS:
        return False


@np.errstate(all="ignore")
def _relation(asked: _Question) -> Relation | None:
    """Keep the relations that every sample has, of those that the first ones have."""
    open_: list[Relation] | None = None
    shown: _Shown = {}
    at_first = LIKE_FIRST if asked.lines else 1
    try:
        fibers, whole = asked.asked_fibers, asked.whole
        for draws in samples(asked.region, fibers, whole=whole, at_first=at_first):
            _show(shown, draws)
            if open_ is None:
                open_ = list(_found(asked, draws.pairs))
            open_ = [found for found in open_ if _all_have(found, draws, asked.slack)]
            if not open_:
                return None
            if all(_varies_openly(found, asked.region) for found in open_):
                return ANY
        if open_ and not _shows_enough(shown):
            # What is not finite is shown where a constant alone makes it so in both models.
            plain = asked.region.all_finite()
            for draws in samples(plain, fibers, whole=whole) if plain else ():
                _show(shown, draws)
    except ERRORS:
        return None
    return open_[0] if open_ and _shows_enough(shown) else None


def _varies_openly(found: Relation, region: Region) -> bool:
    """Whether it has numbers along an axis whose size is open, so that it is one of no other size.

    No wider region shows another line between the same numbers.
    """
    dims, drawn = region.pair[1].shape, set(region.symbols)
    if dims is None or not drawn:
        return False
    arrays = [array for array in (found.r, found.s) if array is not None]
    return any(
        size > 1 and isinstance(dim, ir.SymbolicDim) and not drawn.isdisjoint(_names(dim))
        for array in arrays
        for size, dim in zip(array.shape, dims, strict=True)
    )


def _names(dim: ir.SymbolicDim) -> list[str]:
    """Return the names in a size that is an expression: ``B*4``."""
    return re.findall(r"[^\W\d]\w*", str(dim.value or ""))


@np.errstate(all="ignore")
def _at_first(asked: _Question, candidates: Iterable[Relation] = ()) -> bool:
    """Whether one draw has a relation: one of the candidates, or else one that is asked for."""
    try:
        draws = next(samples(asked.region, whole=asked.whole, at_first=1))
        found = candidates or _found(asked, draws.pairs)
        return any(_all_have(relation, draws, asked.slack) for relation in found)
    except ERRORS:
        return False


def _show(shown: _Shown, draws: Draws) -> None:
    """Add the elements that were finite in both models in some draw."""
    for u, v in draws.pairs:
        finite = np.isfinite(v) & (np.isfinite(u) if u.shape == v.shape else np.True_)
        shown[v.shape] = shown.get(v.shape, np.False_) | finite


def _shows_enough(shown: _Shown) -> bool:
    """Whether elements were finite in some draw: two NaN, roots of what is negative, show nothing.

    All where few elements are drawn often; of many, drawn few times, some never are.
    """
    return all(
        bool(each.all()) if each.size <= FEW else bool(each.mean() > _MOSTLY)
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
    yield from (Relation(turn=turn) for turn in asked.turns)
    yield from (Relation(fiber=fiber) for fiber in asked.fibers)
    for reverse in (False, True) if asked.lines else ():
        found = line([(v, u) if reverse else (u, v) for u, v in draws], asked.slack)
        if found is not None:
            yield Relation(*found, reverse)


def _all_have(relation: Relation, draws: Draws, slack: float) -> bool:
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
    if relation.turn is not None:
        return _is_turn(u, v, relation.turn)
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


def _is_turn(u: Float64, v: Float64, turn: Turn) -> bool:
    try:
        return is_small(v - rotated(u, turn.fiber, turn.matrix), u, v)
    except OnnxfoldError:
        return False


def _fits(r: Float64, u: Float64) -> bool:
    return all(a in (1, b) for a, b in zip(r.shape, u.shape, strict=True))
