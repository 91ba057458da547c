"""The one relation: u = r * v + s per channel, + c constant along a fiber; u = E v; or v = u R.

u is a value of the original and v its counterpart. r and s broadcast against u as in numpy; c is
any tensor that is constant along the sets of the fiber. E appends the element that makes the mean
along an axis 0: v is u, of mean 0, without the last element there. A weight that reads v instead of
E v is E' times the former weight: u' E v = (E' u)' v. R is orthogonal, and multiplies every set of
a fiber.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from onnxfold.graph import Fiber
from onnxfold.proof.sizes import Sizes
from onnxfold.weights.means import chosen_elements, split_digits
from onnxfold.weights.rotations import rotated

_TOLERANCE = 2.0**-38  # 2^15 roundings
_FAR = 2.0**-10  # from u = v, of numbers of the order of 1; roundings of stored numbers are smaller
Float64 = npt.NDArray[np.float64]


def means(array: Float64, fiber: Fiber) -> Float64:
    """Return the mean of every set of the fiber, in the shape of the array, 0 outside its part.

    Raises InvariantError if the fiber does not fit the shape.
    """
    digits, members = split_digits(array.shape, fiber)
    if array.size == 0:
        return array
    shown = array.reshape(digits).mean(axis=members, keepdims=True)
    spread = np.broadcast_to(shown, digits).reshape(array.shape)
    chosen = chosen_elements(array.shape, fiber)
    return spread if chosen is None else np.where(chosen, spread, 0.0)


def completed(v: Float64, axis: int) -> Float64:
    """Return E v: one more element along an axis, which makes the mean 0."""
    return np.concatenate([v, -v.sum(axis=axis, keepdims=True)], axis=axis)


def differences(long: Float64, axis: int) -> Float64:
    """Return E' u: u without its last element, which is subtracted from all others."""
    rest, last = np.split(long, [long.shape[axis] - 1], axis=axis)
    return np.asarray(rest - last)


class Cut(Enum):
    """How a tensor is represented without its last element along an axis."""

    COMPLETED = auto()  # long = E short
    READ = auto()  # short = E' long, for weights that read the two
    PADDED = auto()  # long is short with a 0 appended


def is_small(error: Float64, *sizes: Float64, slack: float = 0.0) -> bool:
    """Whether an error is within float64 roundings of numbers of these sizes."""
    if error.size == 0:
        return True
    bound = _TOLERANCE * max(float(np.max(np.abs(size), initial=0)) for size in sizes) + slack
    return bool(np.all(np.abs(error) <= bound))  # not for NaN and inf


def shortened(long: tuple[int, ...], short: tuple[int, ...]) -> tuple[int, ...]:
    """Return the only axis along which a shape is longer, by one element, or ()."""
    if len(long) != len(short):
        return ()
    axes = tuple(axis for axis, size in enumerate(short) if long[axis] != size)
    return axes if len(axes) == 1 and long[axes[0]] == short[axes[0]] + 1 else ()


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """v = u R for every set of a fiber of one block; ``matrix`` is R, one array for all places."""

    fiber: Fiber
    matrix: Float64

    @property
    def key(self) -> tuple[object, ...]:
        """What two turns have in common that are the same."""
        return (self.fiber, id(self.matrix))


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """u = r * v + s, or v = r * u + s if ``reverse``; plus c if there is a fiber.

    ``short``: v is just u without an element of this axis as ``cut`` describes; or the reverse if
    ``reverse``. ``turn``: v is just u R. Not ``known``: only the equality of their shapes is known.
    """

    r: Float64 | None = None
    s: Float64 | None = None
    reverse: bool = False
    fiber: Fiber | None = None
    known: bool = True
    short: int | None = None
    cut: Cut = Cut.COMPLETED
    turn: Turn | None = None

    @property
    def equal(self) -> bool:
        """Whether u = v."""
        others = (self.r, self.fiber, self.short, self.turn)
        return self.known and all(each is None for each in others)

    @property
    def vacuous(self) -> bool:
        """Whether any u and v of one shape satisfy it: a shift of each element by itself."""
        return self.fiber is not None and self.fiber.size == 1

    @property
    def final(self) -> bool:
        """Whether no wider test can show more: u = v, or u = r * v + s far from it, r not 0.

        Both would make v one number per channel, s / (1 - r). Values of different shapes are not
        equal.
        """
        if self.short is not None or self.turn is not None:
            return True
        if self.r is None or self.s is None:
            return self.equal
        off = [float(np.max(np.abs(array), initial=0)) for array in (self.r - 1, self.s)]
        return not self.one_sided and sum(off) > _FAR

    @property
    def adds(self) -> bool:
        """Whether u = v + s."""
        return self.r is not None and bool(np.all(self.r == 1))

    @property
    def one_sided(self) -> bool:
        """Whether it fixes numbers of one value independently of the other: r = 0."""
        return self.r is not None and not np.all(self.r)

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key shared by relations that the same test proves."""
        arrays = (self.r, self.s)
        numbers = tuple(None if a is None else (a.shape, a.tobytes()) for a in arrays)
        turn = None if self.turn is None else self.turn.key
        return (*numbers, self.reverse, self.fiber, self.known, self.short, self.cut, turn)

    def kept(self, shape: tuple[int, ...]) -> set[int]:
        """Return the sizes of the axes along which the relation has numbers."""
        arrays = [array for array in (self.r, self.s) if array is not None]
        axes = {axis for array in arrays for axis, size in enumerate(array.shape) if size > 1}
        sizes = {shape[axis] for axis in axes if axis < len(shape)}
        if self.short is not None:
            sizes |= {shape[self.short], shape[self.short] + self._more}
        if self.turn is not None:
            sizes.add(len(self.turn.matrix))
        return sizes

    def of(self, sizes: Sizes) -> Relation:
        """Return the relation of smaller tensors."""
        fiber = None if self.fiber is None else sizes.fiber(self.fiber)
        turn = None if self.turn is None else replace(self.turn, fiber=sizes.fiber(self.turn.fiber))
        return self if fiber is None and turn is None else replace(self, fiber=fiber, turn=turn)

    def shape_of_counterpart(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of v for one of u."""
        return tuple(size + self._more * (axis == self.short) for axis, size in enumerate(shape))

    @property
    def _more(self) -> int:
        """The number of elements that v has more than u along ``short``."""
        return 1 if self.reverse else -1

    def original(self, v: Float64, rng: np.random.Generator, scale: float) -> Float64:
        """Return a u that the relation allows for v; raises ArithmeticError if there is none."""
        if not self.known:
            return rng.standard_normal(v.shape) * scale
        if self.short is not None:
            return self._resized(v, rng, scale, more=not self.reverse)
        if self.turn is not None:
            return rotated(v, self.turn.fiber, self.turn.matrix, back=True)
        u = v
        if self.r is not None and self.s is not None:
            u = _solved(v, self.r, self.s) if self.reverse else self.r * v + self.s
        return u + self._shift(u, rng, scale)

    def counterpart(self, u: Float64, rng: np.random.Generator, scale: float) -> Float64:
        """Return a v that the relation allows for u; raises ArithmeticError if there is none."""
        if not self.known:
            return rng.standard_normal(u.shape) * scale
        if self.short is not None:
            return self._resized(u, rng, scale, more=self.reverse)
        if self.turn is not None:
            return rotated(u, self.turn.fiber, self.turn.matrix)
        v = u - self._shift(u, rng, scale)
        if self.r is not None and self.s is not None:
            v = self.r * v + self.s if self.reverse else _solved(v, self.r, self.s)
        return v

    def _resized(
        self, array: Float64, rng: np.random.Generator, scale: float, *, more: bool
    ) -> Float64:
        """Return the counterpart with one element more, or fewer, along ``short``."""
        axis = self.short or 0
        if self.cut is Cut.COMPLETED:
            return completed(array, axis) if more else self._without_last(array, scale)
        if not more and self.cut is Cut.READ:
            return differences(array, axis)
        if not more:
            raise ArithmeticError("its last element is not 0")
        one = array.take([0], axis=axis)
        last = rng.standard_normal(one.shape) * scale if self.cut is Cut.READ else 0.0 * one
        return np.concatenate([array + last, last], axis=axis)

    def _without_last(self, long: Float64, scale: float) -> Float64:
        axis = self.short or 0
        rest = long.take(range(long.shape[axis] - 1), axis=axis)
        if not np.allclose(completed(rest, axis), long, rtol=0, atol=2.0**-40 * scale):
            raise ArithmeticError("its mean is not 0")
        return rest

    def _shift(self, like: Float64, rng: np.random.Generator, scale: float) -> Float64:
        if self.fiber is None:
            return np.zeros(like.shape)
        noise = rng.standard_normal(like.shape) * (scale * np.sqrt(self.fiber.size))
        return means(noise, self.fiber)


def _solved(y: Float64, r: Float64, s: Float64) -> Float64:
    """Return x of y = r * x + s."""
    if np.any(r == 0):
        raise ArithmeticError("a scale is 0")
    return np.asarray((y - s) / r)


EQUAL = Relation()
ANY = Relation(known=False)
