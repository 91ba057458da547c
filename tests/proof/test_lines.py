"""Lines through draws of two values: a slope counts where it is seen above the roundings."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.proof.relation import Float64, Relation
from onnxfold.proof.tester import line

DRAWS = [np.random.default_rng(seed).standard_normal((3, 5)) for seed in range(4)]


def _relation(r: float | Float64, s: float | Float64) -> Relation:
    found = line([(r * v + s, v) for v in DRAWS], slack=0.0)
    assert found is not None
    return Relation(*found)


@pytest.mark.parametrize("constant", [1 / 3, -0.1, 1e-30 / 3, 7e20])
def test_a_constant_has_no_slope(constant: float) -> None:
    """Least squares yield one of the order of 1e-32, by which v could not be derived from u."""
    found = _relation(0.0, constant)
    assert found.r is not None
    assert np.all(found.r == 0)
    assert not found.final
    with pytest.raises(ArithmeticError):
        found.counterpart(DRAWS[0], np.random.default_rng(0), 1.0)


@pytest.mark.parametrize("r", [1e-32, -1e-32, 1e-300])
def test_a_tiny_scale_alone_is_a_scale(r: float) -> None:
    found = _relation(r, 0.0)
    assert found.final
    v = found.counterpart(r * DRAWS[0], np.random.default_rng(0), 1.0)
    # Quotients of float64: 2^-52, and a subnormal product at 1e-300 has no fewer digits.
    assert np.abs(v - DRAWS[0]).max() <= 2.0**-45


def test_a_tiny_scale_beside_others_is_not_seen() -> None:
    """A channel whose errors could be as large as itself: nothing is claimed of it."""
    assert not _relation(np.array([1, 1, 1, 1, 1e-32]), 0.0).final
    assert _relation(np.array([1, 1, 1, 1, 1e-6]), 0.0).final


@pytest.mark.parametrize("s", [0.0, 1 / 3, 1e3])
@pytest.mark.parametrize("exponent", range(-40, 1, 4))
def test_a_final_line_gives_v_back(exponent: int, s: float) -> None:
    """What is of the order of roundings of u may not be divided by."""
    r = 0.7 * 10.0**exponent
    found = _relation(r, s)
    if s == 0 or r > 1e-8 * s:
        assert found.final
    if found.final:
        v = found.counterpart(r * DRAWS[0] + s, np.random.default_rng(0), 1.0)
        # u is rounded to 2^-53 of its size; r v is at least 2^-42 of that.
        assert np.abs(v - DRAWS[0]).max() <= 2.0**-8 * np.abs(DRAWS[0]).max()


def test_padding_has_the_line_of_the_elements_beside_it() -> None:
    """Zeros are any product of zeros."""
    padded = [np.pad(v, ((1, 0), (0, 0))) for v in DRAWS]
    found = line([(4 * v, v) for v in padded], slack=0.0)
    assert found is not None
    assert [part.tolist() for part in found] == [[[4.0]], [[0.0]]]


def test_lines_along_one_axis_are_apart_from_those_along_another() -> None:
    r = np.array([[2.0], [3.0], [2.0]])
    found = line([(r * v, v) for v in DRAWS], slack=0.0)
    assert found is not None
    assert found[0].shape == r.shape
    assert np.abs(found[0] - r).max() <= 2.0**-45
