"""Means of arrays along fibers: the projector P = I - 11'/d on numpy arrays.

    mean(W)  = sum of W over each set of the fiber / size of the set      (float64)
    P W      = W - mean(W)

An array is viewed with every axis split into its digits (outer, size, inner), so that a fiber of
blocks is a plain set of axes of the split array.
"""

from collections.abc import Iterator
from math import prod

import numpy as np
import numpy.typing as npt

from onnxfold.errors import InvariantError
from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, Float64

_SAMPLED_SETS = 64
_PART_ELEMENTS = 1 << 20  # float64 work space of a few times 8 MiB
# Half the distance between adjacent numbers: relative, and absolute below the normal range.
_ROUNDOFF = {
    "float8_e4m3fn": (2.0**-4, 2.0**-10),
    "bfloat16": (2.0**-8, 2.0**-134),
    "float16": (2.0**-11, 2.0**-25),
    "float32": (2.0**-24, 2.0**-150),
    "float64": (2.0**-53, 2.0**-1075),
}


def split_digits(shape: tuple[int, ...], fiber: Fiber) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the digit shape of a tensor, and which digits belong to the fiber.

    Raises InvariantError if the fiber does not fit the shape.
    """
    digits: list[int] = []
    members: list[int] = []
    for axis, dim in enumerate(shape):
        rest = dim
        own: list[tuple[int, bool]] = []
        for block in sorted(b for b in fiber.blocks if b.axis == axis):
            passed = dim // rest if rest else 1
            if rest == 0 or block.inner % passed or rest % (block.inner // passed * block.size):
                raise InvariantError(f"fiber {fiber} does not fit shape {shape}")
            gap = block.inner // passed
            own += [(gap, False), (block.size, True)]
            rest //= gap * block.size
        own.append((rest, False))
        for size, member in reversed(own):
            if member:
                members.append(len(digits))
            digits.append(size)
    return tuple(digits), tuple(members)


def chosen_elements(shape: tuple[int, ...], fiber: Fiber) -> npt.NDArray[np.bool_] | None:
    """Return which elements are in the part of a fiber, to broadcast; None for all.

    Raises InvariantError if the fiber does not fit the shape.
    """
    if fiber.part is None:
        return None
    chosen = np.array(fiber.part.chosen, np.float64)
    return np.asarray(Channels(fiber.part.digits).spread(chosen, shape) != 0)


def sets_of_part(array: Array, fiber: Fiber) -> tuple[Array, Array]:
    """Return the sets of the part of a fiber as rows, and the other sets.

    Raises InvariantError if the fiber does not fit the shape.
    """
    digits, members = split_digits(array.shape, fiber)
    others = [axis for axis in range(len(digits)) if axis not in members]
    chosen = chosen_elements(array.shape, fiber)
    elements = np.broadcast_to(True if chosen is None else chosen, array.shape)
    order, size = (*others, *members), fiber.size
    rows = array.reshape(digits).transpose(order).reshape(-1, size)
    own = elements.reshape(digits).transpose(order).reshape(-1, size)[:, 0]
    return rows[own], rows[~own]


def parts_of_sets(digits: tuple[int, ...], members: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield parts of an array of digits that contain whole sets, of about 2^20 elements each."""
    others = [axis for axis in range(len(digits)) if axis not in members]
    if not others:
        yield (slice(None),) * len(digits)
        return
    along = max(others, key=lambda axis: (digits[axis], -axis))
    rest = max(1, prod(digits) // max(1, digits[along]))
    step = max(1, _PART_ELEMENTS // rest)
    for start in range(0, max(1, digits[along]), step):
        yield (*(slice(None),) * along, slice(start, start + step))


def is_centred(array: Array, fiber: Fiber, magnitude: float = 0.0) -> bool:
    """Whether every set has mean 0 up to the rounding of a stored centered array.

    Each stored element errs by at most u |w| + v, u and v the relative and absolute roundoff of the
    type, so the mean of a centered set is at most u mean|w| + v. ``magnitude`` bounds the elements
    before the centering, whose means were computed in float64. A few sets are tested first, so that
    a negative answer is cheap.
    """
    if fiber.part is not None:
        array, _ = sets_of_part(array, fiber)
        fiber = Fiber.of([AxisBlock(1, 1, fiber.size, 1)])
    digits, members = split_digits(array.shape, fiber)
    view = array.reshape(digits)
    relative, absolute = _ROUNDOFF[array.dtype.name]
    roundoff = relative, absolute + 2 * fiber.size * _ROUNDOFF["float64"][0] * magnitude
    first = next(
        (axis for axis in range(view.ndim) if axis not in members and digits[axis] > 1), None
    )
    if first is not None and digits[first] > _SAMPLED_SETS:
        sample = view.take(range(0, digits[first], digits[first] // _SAMPLED_SETS), axis=first)
        if not _has_zero_means(sample, members, roundoff):
            return False
    parts = parts_of_sets(digits, members)
    return all(_has_zero_means(view[part], members, roundoff) for part in parts)


def _has_zero_means(view: Array, members: tuple[int, ...], roundoff: tuple[float, float]) -> bool:
    wide = view.astype(np.float64)
    means = np.abs(wide.mean(axis=members))
    relative, absolute = roundoff
    # The means in centering and in this check are float64 sums over a set.
    size = wide.size // max(1, means.size)
    relative += 2 * size * _ROUNDOFF["float64"][0]
    return bool(np.all(means <= relative * np.abs(wide).mean(axis=members) + absolute))


def within_rounding(
    stored: Array,
    exact: Float64,
    magnitude: Float64 | float,
) -> bool:
    """Whether ``stored`` is ``exact`` after one rounding to its type.

    ``magnitude`` bounds the terms whose sum is ``exact``, for the float64 rounding of a sum in any
    order: 2^-40 of it, far below the roundoff of the types that models store.
    """
    relative, absolute = _ROUNDOFF[stored.dtype.name]
    error = np.abs(stored.astype(np.float64) - exact)
    return bool(np.all(error <= relative * np.abs(exact) + absolute + 2.0**-40 * magnitude))


def rounding_of(stored: Array) -> Float64:
    """Return the most by which rounding to its type moved each element; 0 if not finite."""
    relative, absolute = _ROUNDOFF[stored.dtype.name]
    wide = stored.astype(np.float64)
    return np.where(np.isfinite(wide), relative * np.abs(wide) + absolute, 0.0)


def rounded_to_sum(exact: Array, dtype: np.dtype[np.generic], axis: int) -> Array:
    """Return the array in a type, each set along an axis with its sum.

        s = sum of round(w_i) - w_i,   w_i towards s by one more number until |s| is least

    Of weights that a mean was taken from, all of one size are rounded alike, as they lay on one
    grid: the nearest numbers err by up to d / 2 of their last place together. Here no number errs
    by a whole one, and their sum by about a half of one.
    """
    fiber = Fiber.of([AxisBlock(axis, 1, exact.shape[axis], 1)])
    digits, (place,) = split_digits(exact.shape, fiber)
    wide, rounded = exact.reshape(digits), exact.astype(dtype).reshape(digits)
    for part in parts_of_sets(digits, (place,)):
        rounded[part] = _balanced(wide[part].astype(np.float64), rounded[part], place)
    return rounded.reshape(exact.shape)


def _balanced(exact: Float64, rounded: Array, axis: int) -> Array:
    error = rounded.astype(np.float64) - exact
    total = error.sum(axis=axis, keepdims=True)
    away = np.where(total > 0, -np.inf, np.inf).astype(rounded.dtype)
    other = np.nextafter(rounded, away)
    step = np.abs(other.astype(np.float64) - rounded.astype(np.float64))
    # Those first that err most in the direction of the sum, in parts of their step.
    share = np.where(error * total > 0, np.abs(error) / step, 0.0)
    order = np.argsort(-share, axis=axis, kind="stable")
    moved = np.cumsum(np.take_along_axis(np.where(share > 0, step, 0.0), order, axis), axis)
    near = np.take_along_axis(step, order, axis) / 2
    chosen = np.empty(share.shape, np.bool_)
    np.put_along_axis(chosen, order, moved <= np.abs(total) + near, axis)
    return np.where(chosen & (share > 0), other, rounded)
