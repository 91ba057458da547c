"""float16 to wider floats and back by operations on whole arrays; numpy converts one by one.

Widening.  The bits of a half x, moved to where float32 has its exponent and fraction, are
x * 2^-112, of a subnormal half too; the product with 2^112 is exact.

Narrowing.  x in float64 is first rounded to f in float32.  Half a unit in the last place of the
result is added to the bits of |f|, and those behind that place are cut off: this rounds to the
nearest, and a carry runs into the exponent as it should.  It decides as x itself would unless f
lies half way between two halves: those are float32 numbers, and rounding x to f takes it past none.
These f, and results that are 0, subnormal, infinite or NaN, are left to numpy's conversion of x,
which rounds once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Converter"]

Array = npt.NDArray[np.generic]
Float32 = npt.NDArray[np.float32]

_BLOCK = 1 << 15  # what is at work on one stays in the cache of a core

_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)
_FRACTION = 13  # bits that float32 has more
_SCALE = np.float32(2.0**112)  # the exponent of float32 is biased by 112 more
_KEPT = np.int32(-0x70002000)  # sign, low five bits of the exponent, ten bits of the fraction
_INFINITE = np.uint16(0x7C00)
_LEAST = np.uint32(0x38800000 - 0x1000)  # 2^-14, the least normal half, less half a unit
_RANGE = np.uint32(30 << 23)  # the exponents of normal halves
_FEW = 8  # one element in so many may take the long way alone


class Converter:
    """Converts contiguous arrays; has a work space, so that each thread needs one of its own."""

    def __init__(self) -> None:
        self._single = np.empty(_BLOCK, np.float32)
        self._bits = np.empty(_BLOCK, np.uint32)
        self._low = np.empty(_BLOCK, np.uint32)
        self._short = np.empty(_BLOCK, np.uint16)
        self._flags = np.empty((2, _BLOCK), np.bool_)

    def widen(self, array: Array, out: Array) -> None:
        """Store ``array`` in ``out``, of as wide a type or wider, and of the same shape."""
        if array.dtype != _HALF or not _plain(array, out):
            np.copyto(out, array)
            return
        halves, wide = array.reshape(-1), out.reshape(-1)
        for start in range(0, halves.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            self._widen(halves[block], wide[block])

    def narrow(self, array: Array, out: Array) -> None:
        """Store ``array``, in float32 or float64, in ``out`` of the same shape, rounded once."""
        if out.dtype != _HALF or not _plain(array, out):
            np.copyto(out, array, casting="unsafe")
            return
        wide, halves = array.reshape(-1), out.reshape(-1)
        for start in range(0, wide.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            self._narrow(wide[block], halves[block])

    def _widen(self, halves: Array, out: Array) -> None:
        count = halves.size
        magnitudes = np.bitwise_and(halves.view(np.uint16), 0x7FFF, out=self._short[:count])
        if magnitudes.max() >= _INFINITE:
            np.copyto(out, halves)
            return
        single = out if out.dtype == _SINGLE else self._single[:count]
        bits = single.view(np.int32)
        np.copyto(bits, halves.view(np.int16))
        np.left_shift(bits, _FRACTION, out=bits)
        np.bitwise_and(bits, _KEPT, out=bits)
        np.multiply(single, _SCALE, out=single)
        if single is not out:
            np.copyto(out, single)

    def _narrow(self, wide: Array, out: Array) -> None:
        count = wide.size
        single = wide
        if wide.dtype != _SINGLE:
            single = self._single[:count]
            np.copyto(single, wide, casting="same_kind")
        bits, low, sign = self._bits[:count], self._low[:count], self._short[:count]
        special, tied = self._flags[:, :count]
        np.bitwise_and(single.view(np.uint32), 0x7FFFFFFF, out=bits)
        np.subtract(bits, _LEAST, out=bits)  # what is too small wraps, and is too large then
        np.greater_equal(bits, _RANGE, out=special)
        np.bitwise_and(bits, 0x1FFF, out=low)
        np.equal(low, 0, out=tied)
        np.logical_or(special, tied, out=special)
        np.right_shift(bits, _FRACTION, out=bits)
        result = out.view(np.uint16)
        np.copyto(result, bits, casting="unsafe")
        np.add(result, 0x0400, out=result)
        np.signbit(single, out=tied)
        np.copyto(sign, tied)
        np.left_shift(sign, 15, out=sign)
        np.bitwise_or(result, sign, out=result)
        left = np.flatnonzero(special)
        if left.size * _FEW > count:
            np.copyto(out, wide, casting="same_kind")
        elif left.size:
            out[left] = wide[left]


def _plain(*arrays: Array) -> bool:
    return all(array.flags.c_contiguous and array.dtype.isnative for array in arrays)
