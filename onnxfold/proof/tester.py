"""Numeric tests of a region: which relation its outputs have for all related inputs.

A relation is accepted if it was satisfied for random float64 inputs of three magnitudes and, with
symbolic dimensions, for two choices of all sizes. The compared values are float64 sums and
quotients of the same numbers in different order: they differ by roundings of 2^-53, a few thousand
of them at most, while a wrong rule is off by the order of the numbers themselves.
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
_Shown = dict[tuple[int, ...], _Bools]  # by shape, whether an element was finite in some draw
_SNAP = 2.0**-42


@dataclass(frozen=True, slots=True)
class _Question:
    """Which of the named relations a region has; and whether to search for lines."""

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
    """Tests of regions, each remembered, so that equal layers cost one.

    ``whole``: regions that cannot run on smaller tensors run on the model's sizes.
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
        """Return the strongest relation found of the outputs, or None.

        A relation that is not ``known`` cannot be found by a wider region either. ``fibers``: the
        fibers along which a shift may be constant; ``turns``: possible rotations; ``slack``: how
        far roundings of stored constants may move the outputs.
        """
        named = self._remembered(_Question(region, slack, self._whole, fibers, turns=turns))
        return named or self._line(region, slack)

    def shift(self, region: Region, fibers: tuple[Fiber, ...]) -> Relation | None:
        """Return a relation: along one of these fibers the outputs differ by a constant."""
        slack = max((leaf.slack for leaf in region.leaves), default=0.0)
        return self._remembered(_Question(region, slack, self._whole, fibers))

    def _line(self, region: Region, slack: float) -> Relation | None:
        """Return u = r * v + s, if possible by a test shared with other numbers.

        One draw of the actual numbers confirms such a result.
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
        """Return the relation if the outputs are equal, or one lacks an element, otherwise None."""
        return self._remembered(_Question(region, slack, self._whole))

    def runs(self, region: Region) -> bool:
        """Whether the region can run at some sizes; means of 0 change nothing."""
        key = ("runs", region.key)
        if key not in self._known:
            self._known[key] = _runs(region, whole=self._whole)
        return bool(self._known[key])

    def may_be_exact(self, region: Region, slack: float) -> bool:
        """Whether one draw leaves it possible that ``exact`` finds something."""
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
        """Describe the rows on which the rewritten model rounds more than the original, if any."""
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
    """Keep each relation of the first samples that all samples have."""
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
            # Non-finite results are covered if only a constant causes them in both models.
            plain = asked.region.all_finite()
            for draws in samples(plain, fibers, whole=whole) if plain else ():
                _show(shown, draws)
    except ERRORS:
        return None
    return open_[0] if open_ and _shows_enough(shown) else None


def _varies_openly(found: Relation, region: Region) -> bool:
    """Whether it has numbers along an axis of unknown size, so it applies to no other size.

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
    """Whether one draw has a relation: a candidate, otherwise one that is requested."""
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
    """Whether elements were finite in some draw: two NaN (roots of negative numbers) prove nothing.

    Few elements, drawn often, must all be; of many, drawn a few times, some never are. of many,
    drawn few times, some never are.
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
        pairs = [(v, u) if reverse else (u, v) for u, v in draws]
        yield Relation(*line(pairs, asked.slack), reverse)


def _all_have(relation: Relation, draws: Draws, slack: float) -> bool:
    there = relation.of(draws.sizes)
    return all(_has(there, *pair, slack) for pair in draws.pairs)


def _has(relation: Relation, u: Float64, v: Float64, slack: float) -> bool:
    """Whether two values have a relation; non-finite ones only equality."""
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


def line(draws: list[Pair], slack: float) -> tuple[Float64, Float64]:
    """Return r and s of u = r * v + s by least squares for every element, joined along axes.

    A value that roundings of stored constants could have made from 1 or 0 counts as 1 or 0, and r
    is 0 if its product with v is within the roundings of u: as far as can be seen, u is then s.
    """
    u, v = (np.stack([pair[side] for pair in draws]) for side in (0, 1))
    r, s = _slope(u, v, tuple(range(u.ndim)), slack)
    if not _is_line(u, v, r, s, slack):
        r, s = _widest(u, v, slack)
    return r, s


def _widest(u: Float64, v: Float64, slack: float) -> tuple[Float64, Float64]:
    """Return r and s with the axes joined along which one line fits; elements may be constant."""
    axes: tuple[int, ...] = (0,)
    found = _slope(u, v, axes, slack)
    for axis in range(1, u.ndim):
        wider = _slope(u, v, (*axes, axis), slack)
        if _is_line(u, v, *wider, slack):
            axes, found = (*axes, axis), wider
    return found


def _is_line(u: Float64, v: Float64, r: Float64, s: Float64, slack: float) -> bool:
    return is_small(u - r * v - s, u, r * v, s, slack=slack)


def _slope(u: Float64, v: Float64, axes: tuple[int, ...], slack: float) -> tuple[Float64, Float64]:
    mean_u, mean_v = (a.mean(axis=axes, keepdims=True) for a in (u, v))
    moved = v - mean_v
    spread = (moved * moved).sum(axis=axes, keepdims=True)
    still = spread <= 2.0**-80 * float(np.max(v * v, initial=0))
    with np.errstate(all="ignore"):
        r = (moved * (u - mean_u)).sum(axis=axes, keepdims=True) / spread
    r = np.where(still, 1.0, r)
    r = np.where(np.abs(r - 1) <= _SNAP + slack, 1.0, r)
    least = _SNAP * float(np.max(np.abs(u), initial=0))
    r = np.where(np.abs(r) * float(np.max(np.abs(v), initial=0)) <= least, 0.0, r)
    s = mean_u - r * mean_v
    s = np.where(np.abs(s) <= least + slack, 0.0, s)
    return r[0], s[0]
