"""What a linear layer absorbs from the operator after it: which constants change, and how."""

from dataclasses import dataclass

from onnxfold.passes.places import Place
from onnxfold.passes.ranges import RangeWarning
from onnxfold.refusal import Refusal


@dataclass(frozen=True, slots=True)
class ScaleFusion:
    """An operator z = scale * y + shift that is absorbed by an upstream linear layer.

    ``output`` is the reference of z, ``writer`` of the linear layer's result; ``scaled`` are the
    constants that absorb the scale, ``shifted`` the one that then absorbs the shift. ``part``:
    start, length and total of the scaled channels, after a Split of all of them.
    """

    name: str
    output: str
    writer: str
    scaled: tuple[Place, ...]
    shifted: Place | None = None
    part: tuple[int, int, int] | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """All constants that change."""
        return self.scaled if self.shifted is None else (*self.scaled, self.shifted)


@dataclass(frozen=True, slots=True)
class ScalesPlan:
    """What linear layers absorb from the operators after them, and the ranges that grow.

    ``refusals``: which operators stay though a layer could absorb them, by reference, and why.
    """

    fusions: tuple[ScaleFusion, ...] = ()
    ranges: tuple[RangeWarning, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing moves."""
        return not self.fusions

    def left_out(self, reason: str) -> "ScalesPlan":
        """Return the plan to move nothing."""
        del reason  # the report has no rows for scales
        return ScalesPlan(refusals=self.refusals)

    def then(self, later: "ScalesPlan") -> "ScalesPlan":
        """Return both plans as one, with the later refusals."""
        fusions, ranges = self.fusions + later.fusions, self.ranges + later.ranges
        return ScalesPlan(fusions=fusions, ranges=ranges, refusals=later.refusals)
