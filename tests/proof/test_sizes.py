"""Sizes that a test draws: those that symbols must have, and smaller ones that fit a fiber."""

from __future__ import annotations

import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.proof.sizes import Sizes, broadcast_sizes


def test_a_symbol_that_meets_ones_and_a_number_is_the_number() -> None:
    assert broadcast_sizes([("N", 4), (1, 4), (5, 1)]) == {"N": 5}
    assert broadcast_sizes([("N",), (1,)]) == {}
    assert broadcast_sizes([("N",), (2,), (3,)]) == {}


@pytest.mark.parametrize(
    ("block", "fits"),
    [
        (AxisBlock(0, 1, 64, 1), True),
        (AxisBlock(0, 1, 32, 2), False),  # 32 * 2 positions of an axis of 6
        (AxisBlock(0, 1, 9, 3), True),  # of an axis that stays
        (AxisBlock(0, 1, 64, None), False),
        (AxisBlock(0, 1, 9, None), True),
    ],
)
def test_digits_fit_where_the_smaller_axis_still_has_them(block: AxisBlock, fits: bool) -> None:
    assert Sizes((), {64: 6}).fits(Fiber((block,))) is fits
