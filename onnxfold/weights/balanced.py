"""Rounding of a set so that its sum is kept: of a channel that is minus the sum of all others.

    s = sum of round(w_i) - w_i,   w_i towards s by one more number until |s| is least

Of weights that a mean was taken from, all of one size are rounded alike, as they lay on one grid:
the nearest numbers err by up to d / 2 of their last place together.  Here no number errs by a whole
one, and their sum by about a half of one.
"""

import numpy as np

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.array_types import Array, Float64
from onnxfold.weights.means import parts_of_sets, split_digits


def rounded_to_sum(exact: Array, dtype: np.dtype[np.generic], axis: int) -> Array:
    """Return the array in a type, each set along an axis with its sum."""
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
