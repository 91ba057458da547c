"""Coefficients of an affine form: a constant array times unknown values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph.array_types import Float64

# 1/n is rounded to float32 before it is multiplied by n, so n * (1/n) is 1 only up to this.
_UNIT_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Coefficient:
    """``array`` (float64, broadcasts as in numpy) times the product of ``runtime`` values.

    ``source`` is a value of the graph that equals the coefficient exactly, if there is one.
    """

    array: Float64
    runtime: tuple[ir.Value, ...] = ()
    source: ir.Value | None = None

    @staticmethod
    def of(number: float) -> Coefficient:
        """Return a scalar."""
        return Coefficient(np.asarray(number, dtype=np.float64))

    def snapped(self) -> Coefficient:
        """Return a scalar equal to n * (1/n) up to the rounding of 1/n as exactly 1, or -1."""
        number = self.number
        if number is not None and abs(abs(number) - 1.0) <= _UNIT_TOLERANCE:
            return ONE if number > 0 else MINUS_ONE
        return self

    @property
    def is_zero(self) -> bool:
        """Whether the coefficient is zero."""
        return not self.array.any()

    @property
    def number(self) -> float | None:
        """The value of a constant scalar, or None."""
        return float(self.array.reshape(())) if not self.runtime and self.array.size == 1 else None

    @property
    def expressible(self) -> bool:
        """Whether the coefficient is a single constant or a single value of the graph."""
        return not self.runtime or (len(self.runtime) == 1 and bool((self.array == 1).all()))

    def times(self, other: Coefficient) -> Coefficient:
        """Return the product."""
        if other.number == 1.0:
            return self
        if self.number == 1.0:
            return other
        if self.is_zero or other.is_zero:
            return ZERO
        if self.number is not None and other.number is not None:
            return Coefficient.of(self.number * other.number)
        runtime = tuple(sorted(self.runtime + other.runtime, key=id))
        return Coefficient(self.array * other.array, runtime)

    def plus(self, other: Coefficient) -> Coefficient | None:
        """Return the sum, or None if it is not one product."""
        if other.is_zero:
            return self
        if self.is_zero:
            return other
        if self.runtime != other.runtime:
            return None
        if self.number is not None and other.number is not None:
            return Coefficient.of(self.number + other.number)
        return Coefficient(self.array + other.array, self.runtime)

    def inverse(self) -> Coefficient | None:
        """Return 1 / self, or None if it is not constant or not finite."""
        if self.runtime or not self.array.all():
            return None
        return Coefficient(1.0 / self.array)

    def negated(self) -> Coefficient:
        """Return -self."""
        return MINUS_ONE.times(self) if not self.is_zero else self

    def opposes(self, other: Coefficient) -> bool:
        """Whether self = -other up to the rounding of 1/n."""
        if self.runtime != other.runtime:
            return False
        if np.array_equal(self.array, -other.array):
            return True
        p, q = self.number, other.number
        if p is not None and q is not None:
            return abs(p + q) <= _UNIT_TOLERANCE * abs(q)
        try:
            mine, theirs = np.broadcast_arrays(self.array, -other.array)
        except ValueError:
            return False
        return bool((np.abs(mine - theirs) <= _UNIT_TOLERANCE * np.abs(theirs)).all())


ZERO = Coefficient.of(0.0)
ONE = Coefficient.of(1.0)
MINUS_ONE = Coefficient.of(-1.0)
