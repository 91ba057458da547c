"""Affine forms over one tensor t and its moments, with constants as coefficients.

    Square        v * v
    Moment        factor * s  [+ epsilon | max epsilon]      s = mean(t^2), var(t) or mean(t)^2
    Root          coefficient * D ** power                   D a Denominator
    Denominator   sqrt(factor * s) with epsilon in one of four places
    Affine        (a * t + m * mean(t)) / D + c

Every statistic knows whether it broadcasts against t, or which axes it has lost (``dropped``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph.constants import Float64
from onnxfold.norms.second_moments import Moment, MomentAxes, Statistic
from onnxfold.norms.site import EpsilonMode

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


@dataclass(frozen=True, slots=True, eq=False)
class Square:
    """The square of a value, element by element."""

    value: ir.Value


@dataclass(frozen=True, slots=True)
class Denominator:
    """The divisor of a norm; ``one_pass`` if the variance was computed as E[x^2] - E[x]^2."""

    t: ir.Value
    over: MomentAxes
    statistic: Statistic
    factor: float
    epsilon: float
    mode: EpsilonMode
    one_pass: bool
    dtype: ir.DataType


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """``coefficient * denominator ** power`` with power 1 (scalar coefficient) or -1."""

    denominator: Denominator
    power: int
    coefficient: Coefficient
    dropped: tuple[int, ...] | None

    @property
    def t(self) -> ir.Value:
        """The tensor."""
        return self.denominator.t

    @property
    def over(self) -> MomentAxes:
        """The elements over which the moment is taken."""
        return self.denominator.over


@dataclass(frozen=True, slots=True, eq=False)
class AffineForm:
    """``(a * t + m * mean(t)) / denominator + c``; ``over`` is None if it contains no moment.

    ``dropped`` is only for a bare mean. ``narrowed``: rounded to a smaller type on the way;
    ``rounds_before_affine``: rounded so before gamma; ``cancels``: differences were taken late;
    ``mixed``: gamma came with the denominator and varies along axes outside the fiber, as in a
    group norm before its Reshape back.
    """

    t: ir.Value
    over: MomentAxes | None
    a: Coefficient
    m: Coefficient
    c: Coefficient = ZERO
    denominator: Denominator | None = None
    dropped: tuple[int, ...] | None = None
    narrowed: bool = False
    rounds_before_affine: bool = False
    cancels: bool = False
    mixed: bool = False

    @property
    def complete(self) -> bool:
        """Whether this is a norm of t: centered over a variance, or bare over a mean square."""
        return not self.mixed and self.normalises

    @property
    def normalises(self) -> bool:
        """Whether this would be a norm of t if its coefficients varied along the right axes."""
        if self.denominator is None or self.dropped is not None:
            return False
        if not (self.a.expressible and self.c.expressible):
            return False
        if self.denominator.statistic is Statistic.VARIANCE:
            return self.a.opposes(self.m)
        return self.m.is_zero

    @property
    def centred(self) -> float | None:
        """The scalar k of k * (t - mean(t)), or None."""
        k = self.a.number
        bare = self.denominator is None and self.c.is_zero and self.dropped is None
        return k if k and bare and self.a.opposes(self.m) else None


Form = Square | Moment | Root | AffineForm
