"""Orthogonal matrices of every size: products of ones and minus ones, or of Haar measure."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from onnxfold.errors import InvariantError
from onnxfold.graph import AxisBlock, Fiber
from onnxfold.weights.rotations import (
    RotationKind,
    error_of_orthogonality,
    hadamard,
    has_hadamard,
    rotated,
    rotation,
)

SIZES = (1, 2, 4, 12, 20, 28, 24, 40, 48, 56, 64, 144, 240, 336, 384, 560, 640, 768, 896, 1024)


@pytest.mark.parametrize("size", SIZES)
def test_hadamard_matrices_are_of_ones_with_rows_at_right_angles(size: int) -> None:
    matrix = hadamard(size)
    assert set(np.unique(matrix)) <= {-1.0, 1.0}
    whole = matrix.astype(np.int64)
    assert np.array_equal(whole @ whole.T, size * np.eye(size, dtype=np.int64))


@pytest.mark.parametrize("size", SIZES)
def test_a_rotation_is_orthogonal_to_1e_15(size: int) -> None:
    """By exact arithmetic: float64 sums of so many products would round more than that."""
    matrix = rotation(RotationKind.HADAMARD, size, 7)
    (one,) = np.unique(np.abs(matrix))
    assert abs(size * Fraction(float(one)) ** 2 - 1) < Fraction(1, 10**15)
    assert np.array_equal(np.sign(matrix) @ np.sign(matrix).T, size * np.eye(size))


@pytest.mark.parametrize("size", [3, 7, 36, 52, 100])
def test_other_sizes_have_random_matrices(size: int) -> None:
    assert not has_hadamard(size)
    for kind in RotationKind:
        matrix = rotation(kind, size, 1).astype(np.longdouble)
        assert np.abs(matrix @ matrix.T - np.eye(size)).max() < 1e-15
    with pytest.raises(InvariantError, match=f"size {size}"):
        hadamard(size)


def test_seeds_tell_matrices_apart() -> None:
    for kind in RotationKind:
        first, again, other = (rotation(kind, 24, seed) for seed in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.allclose(first, other)


def test_every_set_of_a_digit_is_multiplied() -> None:
    matrix = rotation(RotationKind.RANDOM, 4, 0)
    array = np.random.default_rng(0).standard_normal((3, 20, 2))
    heads = Fiber((AxisBlock(1, 1, 4, 5),))
    expected = np.einsum("ahdc,de->ahec", array.reshape(3, 5, 4, 2), matrix).reshape(3, 20, 2)
    assert np.allclose(rotated(array, heads, matrix), expected)
    assert np.allclose(rotated(rotated(array, heads, matrix), heads, matrix, back=True), array)
    with pytest.raises(InvariantError):
        rotated(array, Fiber((AxisBlock(0, 1, 3, 1),)), matrix)


def test_what_is_not_orthogonal_is_seen() -> None:
    matrix = rotation(RotationKind.HADAMARD, 48, 0)
    assert error_of_orthogonality(matrix) < 1e-14
    matrix[3, 4] *= 1 + 1e-9
    assert error_of_orthogonality(matrix) > 1e-11
