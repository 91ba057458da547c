"""Second moments of tensors, such as a norm divides by: mean(t^2), var(t), mean(t)^2."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import onnx_ir as ir

from onnxfold.graph import Fiber
from onnxfold.graph.model_info import Fact
from onnxfold.norms.site import EpsilonMode


class Statistic(Enum):
    """Kinds of second moment: mean(t^2), mean((t - mean(t))^2), or mean(t)^2."""

    MEAN_SQUARE = auto()
    VARIANCE = auto()
    SQUARED_MEAN = auto()


@dataclass(frozen=True, slots=True)
class MomentAxes:
    """The elements over which a moment is taken, in the coordinates of t.

    ``axes`` are ascending and without axes of size 1; ``fiber`` is None if a size is unknown;
    ``groups`` counts the blocks of a group norm's channel axis if its sizes are unknown.
    ``channel`` is the axis of the affine part if an operator fixes it.
    """

    axes: tuple[int, ...]
    fiber: Fiber | None
    groups: int = 0
    channel: int | None = None

    @property
    def size(self) -> int:
        """The number of elements, 0 if unknown."""
        return self.fiber.size if self.fiber is not None else 0


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """Second moment before the square root; ``mode`` is None until epsilon is added."""

    t: ir.Value
    over: MomentAxes
    statistic: Statistic
    factor: float
    dropped: tuple[int, ...] | None
    epsilon: float = 0.0
    mode: EpsilonMode | None = None
    one_pass: bool = False


class Moments(Protocol):
    """The values of one graph that are moments, among other ``forms``."""

    @property
    def forms(self) -> Mapping[ir.Value, object]:
        """The form of every value that has one."""

    def form(self, value: ir.Value | None) -> object | None:
        """Return the form of a value or of what it copies."""

    def atom(self, value: ir.Value) -> ir.Value:
        """Return the tensor that a value equals, seen through copies and exact Casts."""

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, as declared or as the operator determines it."""


MOMENTS: Fact[Callable[[ir.Graph], Moments]] = Fact("moments")
"""The moments of a graph of the model, found when they are asked for."""
