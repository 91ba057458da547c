"""The changes of a stream, as frozen data: its last channel, the weights that read it, shifts."""

from dataclasses import dataclass, field

from onnxfold.passes.base import NormsPlan
from onnxfold.passes.places import ChangedWeight, ReaderRef


@dataclass(frozen=True, slots=True)
class Shortened:
    """A value or a weight, by reference, that loses its last element along an axis."""

    value: str
    axis: int


@dataclass(frozen=True, slots=True)
class CompressionPlan(NormsPlan):
    """The norms that become CRMSNorms, or RMSNorms again, and the streams between weights and them.

    ``entries`` are values that keep their last channel, and that ``entering`` node inputs and the
    norms read without it. ``shapes``: the results of nodes that read the shape of these.
    """

    weights: tuple[Shortened, ...] = ()
    values: tuple[Shortened, ...] = ()
    entries: tuple[Shortened, ...] = ()
    entering: tuple[ReaderRef, ...] = ()
    shapes: tuple[Shortened, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadersPlan(NormsPlan):
    """The norms whose results lose, or regain, their last channel, and the weights that read it.

    ``between``: the values between them and the linear layers; ``layers``: the weights, along the
    axis over which they are multiplied; ``layouts``: operators that move their elements before they
    are read. ``more``: -1 or 1 channel.
    """

    between: CompressionPlan = field(default_factory=CompressionPlan)
    layers: tuple[Shortened, ...] = ()
    layouts: tuple[Shortened, ...] = ()
    more: int = -1


@dataclass(frozen=True, slots=True)
class ShiftingPlan:
    """The weights that are shifted; every c is drawn from ``seed`` and the name of the weight."""

    weights: tuple[ChangedWeight, ...] = ()
    seed: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.weights

    def left_out(self, reason: str) -> "ShiftingPlan":
        """Return the plan to shift nothing."""
        del reason  # the report names the pass
        return ShiftingPlan()
