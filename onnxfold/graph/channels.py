"""Channels: the positions of a vector's elements in a tensor, followed in order through layouts.

A vector g of n elements acts on a tensor as a diagonal: every element of the tensor is multiplied
by one g[i]. i is written in digits, most significant first, each digit a block of an axis. A fiber
(graph/fiber.py) is the same without the order, which matters for a diagonal but not for a mean:
``[B,T,C]`` reshaped to ``[B,T,H,D]`` has i = h * D + d, whatever transposition follows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from onnxfold.errors import InvariantError
from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.constants import Float64


@dataclass(frozen=True, slots=True)
class Channels:
    """Digits of a vector's index, most significant first; none for a vector of one element."""

    digits: tuple[AxisBlock, ...]

    @staticmethod
    def of(digits: Iterable[AxisBlock]) -> "Channels":
        """Return canonical channels: digits of size 1 dropped, adjacent digits merged."""
        merged: list[AxisBlock] = []
        for digit in digits:
            last = merged[-1] if merged else None
            if digit.size == 1:
                continue
            if last and last.axis == digit.axis and last.inner == digit.inner * digit.size:
                size = last.size * digit.size
                merged[-1] = AxisBlock(digit.axis, digit.inner, size, last.outer)
            else:
                merged.append(digit)
        return Channels(tuple(merged))

    @staticmethod
    def along(axes: Iterable[tuple[int, int]]) -> "Channels":
        """Return the channels of whole axes, given as (axis, size), in row-major order."""
        return Channels.of(AxisBlock(axis, 1, size, 1) for axis, size in axes)

    @property
    def size(self) -> int:
        """The number of elements of the vector."""
        return prod(digit.size for digit in self.digits)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of its digits, ascending, each once."""
        return tuple(sorted({digit.axis for digit in self.digits}))

    def mapped(self, image: Callable[[Fiber], Fiber | None]) -> "Channels | None":
        """Return the channels with every digit replaced by its image, or None if one has none."""
        digits: list[AxisBlock] = []
        for digit in self.digits:
            fiber = image(Fiber((digit,)))
            if fiber is None or fiber.size != digit.size:
                return None
            # One digit is a run of elements in row-major order, so its parts are in axis order.
            digits += fiber.blocks
        return Channels.of(digits)

    def renamed(self, axis_of: dict[int, int]) -> "Channels":
        """Return the channels with axis a renamed to ``axis_of[a]``."""
        return Channels.of(
            AxisBlock(axis_of[d.axis], d.inner, d.size, d.outer) for d in self.digits
        )

    def spread(self, vector: Float64, shape: tuple[int, ...]) -> Float64:
        """Return ``vector`` as an array that broadcasts against a tensor of ``shape``.

        Raises InvariantError if the channels do not fit the shape or the vector.
        """
        if vector.size != self.size:
            raise InvariantError(f"a vector of {vector.size} elements has {self.size} channels")
        index = np.zeros((1,) * len(shape), dtype=np.int64)
        stride = self.size
        for digit in self.digits:
            if digit.axis >= len(shape) or shape[digit.axis] % (digit.inner * digit.size):
                raise InvariantError(f"channels {self} do not fit shape {shape}")
            stride //= digit.size
            along = np.arange(shape[digit.axis]) // digit.inner % digit.size * stride
            sizes = [1] * len(shape)
            sizes[digit.axis] = shape[digit.axis]
            index = index + along.reshape(sizes)
        return np.asarray(vector.reshape(-1)[index])

    def __str__(self) -> str:
        return str(Fiber(self.digits)) or "all elements"


SCALAR = Channels(())
