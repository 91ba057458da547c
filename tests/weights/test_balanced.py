"""Rounding that keeps the sum of a set: no number errs by a whole step, the sum by half of one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxfold.weights.means import rounded_to_sum
from tests.pairs import pairs

TYPES = [np.dtype(t) for t in (np.float16, np.float32, ml_dtypes.bfloat16)]


@pairs(dtype=TYPES, spread=[1e-3, 1.0, 1e3], of=[((768,), 0), ((40, 96), 1), ((96, 40), 0)])
def test_the_sum_is_kept(
    dtype: np.dtype[np.generic], spread: float, of: tuple[tuple[int, ...], int]
) -> None:
    shape, axis = of
    on_a_grid = np.random.default_rng(0).standard_normal(shape).astype(dtype) * dtype.type(spread)
    exact = on_a_grid.astype(np.float64)
    exact -= exact.mean(axis=axis, keepdims=True)
    rounded = rounded_to_sum(exact, dtype, axis)
    assert (rounded.dtype, rounded.shape) == (dtype, exact.shape)
    wide, nearest = rounded.astype(np.float64), exact.astype(dtype)
    sides = (np.nextafter(rounded, dtype.type(side)) for side in (-np.inf, np.inf))
    step = np.maximum(*(np.abs(side.astype(np.float64) - wide) for side in sides))
    assert np.all(np.abs(wide - exact) < step)
    total, before = (np.abs((a - exact).sum(axis)) for a in (wide, nearest.astype(np.float64)))
    assert np.all(total <= step.max(axis))
    assert total.max() <= before.max()
    assert len(shape) == 1 or total.mean() < before.mean() / 4


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_what_is_exact_stays(dtype: np.dtype[np.generic]) -> None:
    exact = np.arange(-8.0, 9.0).reshape(1, -1)
    np.testing.assert_array_equal(rounded_to_sum(exact, dtype, 1), exact.astype(dtype))
    zeros = np.zeros((3, 4))
    np.testing.assert_array_equal(rounded_to_sum(zeros, dtype, 0), zeros.astype(dtype))
