"""Which weights are shifted and by what, as frozen data."""

from dataclasses import dataclass

from onnxfold.graph import Fiber


@dataclass(frozen=True, slots=True)
class WeightShift:
    """A weight W, by reference, that becomes W + c, c constant along ``fiber``."""

    value: str
    fiber: Fiber


@dataclass(frozen=True, slots=True)
class ShiftingPlan:
    """The weights that are shifted; every c is drawn from ``seed`` and the name of the weight."""

    weights: tuple[WeightShift, ...] = ()
    seed: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.weights

    def left_out(self, reason: str) -> "ShiftingPlan":
        """Return the plan to shift nothing."""
        del reason  # the report names the pass
        return ShiftingPlan()
