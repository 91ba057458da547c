"""Expressions over one tensor t and its moments over a set of axes.

    Square        v * v
    Moment        factor * s  [+ epsilon | max epsilon]      s = mean(t^2), var(t) or mean(t)^2
    Root          coefficient * D ** power                   D a Denominator
    Denominator   sqrt(factor * s) with epsilon in one of four places
    Affine        (a * t + m * mean(t)) / D + c

Every statistic knows whether it broadcasts against t, or which axes it has lost (``dropped``).
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.norms.second_moments import Moment, MomentAxes, Statistic
from onnxfold.norms.site import EpsilonMode
from onnxfold.recognition.algebra.coefficient import ZERO, Coefficient


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
