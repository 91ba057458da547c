"""float16: the conversions on whole arrays give every bit that numpy's do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from onnxfold.rewrite import halves
from onnxfold.rewrite.halves import Converter

Array = npt.NDArray[np.generic]

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)]
WIDE = (np.float32, np.float64)


def _narrowed(x: Array) -> Array:
    out = np.full(x.shape, 77, np.float16)
    with np.errstate(all="ignore"):
        Converter().narrow(x, out)
    return out


def _assert_rounded_once(x: Array) -> None:
    with np.errstate(all="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(_narrowed(x).view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("given", [ALL, FINITE, FINITE[np.abs(FINITE) < 1e-4], FINITE[:5]])
def test_every_half_is_widened_as_numpy_does(wide: type, given: Array) -> None:
    out = np.full(given.shape, 77, wide)
    with np.errstate(all="ignore"):
        Converter().widen(given, out)
        expected = given.astype(wide)
    unsigned = np.uint32 if wide is np.float32 else np.uint64
    np.testing.assert_array_equal(out.view(unsigned), expected.view(unsigned))


@pytest.mark.parametrize("wide", WIDE)
def test_every_half_and_what_lies_around_every_border_is_rounded_once(
    wide: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The halves, the points half way between two, and the numbers next to those, of any sign.

    In float64 also what float32 would round to such a point.
    """
    monkeypatch.setattr(halves, "_FEW", 0)  # all on the short way
    positive = np.sort(FINITE[~np.signbit(FINITE)]).astype(np.float64)
    ends = np.append(positive, 65536.0)
    borders = np.concatenate([ends, (ends[:-1] + ends[1:]) / 2])
    near = [borders.astype(wide)]
    for towards in (0.0, np.inf):
        near.append(np.nextafter(near[0], wide(towards)))
        if wide is np.float64:
            near += [borders * (1 + sign * 2.0**-power) for sign in (-1, 1) for power in (26, 40)]
    x = np.concatenate(near)
    _assert_rounded_once(np.concatenate([x, -x]))


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("few", [0, 8])
def test_random_numbers_of_every_size_are_rounded_once(
    wide: type, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "_FEW", few)
    rng = np.random.default_rng(0)
    count = 300_000
    bits = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    anything = bits.view(np.float64) if wide is np.float64 else bits.view(np.float32)[:count]
    _assert_rounded_once(anything)
    for size in (1e-9, 1e-7, 1e-4, 0.02, 1.0, 3e4):
        _assert_rounded_once((rng.standard_normal(count) * size).astype(wide))
    # Float64 numbers whose last bits past those of float32 are few, as of products and means.
    kept = np.uint64((1 << 64) - (1 << int(rng.integers(20, 31))))
    close = ((rng.standard_normal(count) * 0.02).view(np.uint64) & kept).view(np.float64)
    _assert_rounded_once(close.astype(wide))


def test_what_is_no_number_stays_none() -> None:
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0, -0.0, 65519.999, 65520.0])
    _assert_rounded_once(x)
    _assert_rounded_once(np.tile(x, 50_000))


def test_an_overflow_is_reported_as_numpy_does() -> None:
    for x in (np.full(9, 1e5), np.append(np.ones(99), 1e5)):
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            Converter().narrow(x, np.empty(x.shape, np.float16))


def test_other_types_and_layouts_are_numpys() -> None:
    given = np.asfortranarray(np.random.default_rng(0).standard_normal((30, 40)))
    out = np.empty((30, 40), np.float16)
    Converter().narrow(given, out)
    np.testing.assert_array_equal(out, given.astype(np.float16))
    wide = np.empty((40, 30))
    Converter().widen(out.T, wide)
    np.testing.assert_array_equal(wide, out.T.astype(np.float64))
    Converter().widen(out.astype(out.dtype.newbyteorder()).T, wide)
    np.testing.assert_array_equal(wide, out.T.astype(np.float64))
