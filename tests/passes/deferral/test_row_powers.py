"""Powers of the scales of rows: which of them is the scale of a value, and which its inverse."""

from __future__ import annotations

import pytest

from onnxfold.passes.deferral.row_scale import RowPower, RowScale


@pytest.mark.parametrize(
    ("degree", "is_scale", "is_inverse"), [(-2, True, False), (1, False, True), (2, False, False)]
)
def test_a_power_is_a_scale_by_exponent_and_rows(
    degree: int, is_scale: bool, is_inverse: bool
) -> None:
    """1 / s^2 is s^-2, and the inverse of the square of s."""
    power = RowPower(1.0, ((0,), ()))
    scale = RowScale(degree, ((0,), ()))
    assert power.is_scale(scale, 2) == is_scale
    assert power.is_inverse_square(scale, 2) == is_inverse
    transposed = RowScale(degree, ((), (0,)))
    assert not power.is_scale(transposed, 2)
    assert not power.is_inverse_square(transposed, 2)
