"""The moves of a norm's gamma and beta: which constants change, for which readers, and how."""

from dataclasses import dataclass, replace

import numpy as np

from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Float64
from onnxfold.passes.places import Place, ReaderRef
from onnxfold.passes.ranges import RangeWarning
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Absorption:
    """A linear reader: its weight W absorbs gamma, its bias absorbs factor * W beta.

    ``outer`` are the channels of the reader's output in W. ``parts``: the biases after a Split of
    the output, instead of ``bias``; each absorbs its part of W beta. ``start``: where gamma begins
    in the channels of W, if these are others (before them if negative).
    """

    reader: ReaderRef
    weight: Place
    outer: Channels
    bias: Place | None = None
    factor: float = 1.0
    parts: tuple[Place, ...] = ()
    start: int | None = None

    def placed(self, vector: Float64, neutral: float) -> Float64:
        """Return gamma (``neutral`` 1) or beta (0) over all channels of W."""
        if self.start is None:
            return vector
        whole, first = np.full(self.weight.channels.size, neutral), max(self.start, 0)
        part = vector[first - self.start :][: whole.size - first]
        whole[first : first + part.size] = part
        return whole

    @property
    def biases(self) -> tuple[Place, ...]:
        """The constants that absorb W beta, or a part of it."""
        return self.parts if self.bias is None else (self.bias,)

    def without_beta(self) -> "Absorption":
        """Return the absorption if beta does not move."""
        return replace(self, bias=None, parts=())


@dataclass(frozen=True, slots=True)
class AffineFusion:
    """A norm whose gamma or beta or both move into all of its readers.

    ``output`` is the reference of the norm's result. ``gamma`` without ``beta`` leaves beta / gamma
    in the norm, if it has a beta. ``left``: the factor that stays in the norm, by which the weights
    are divided; a norm without gamma may get one. ``tables``: gamma moves into factors of the
    norm's result, not into weights.
    """

    norm: str
    output: str
    gamma: bool
    beta: bool
    readers: tuple[Absorption, ...]
    left: float = 1.0
    tables: bool = False

    @property
    def scales(self) -> bool:
        """Whether weights are scaled."""
        return self.gamma or self.left != 1.0

    @property
    def places(self) -> tuple[Place, ...]:
        """All constants that change."""
        return tuple(
            place
            for reader in self.readers
            for place in (reader.weight if self.scales else None, *reader.biases)
            if place is not None
        )

    def __str__(self) -> str:
        parts = " and ".join(
            part for part, moves in (("gamma", self.gamma), ("beta", self.beta)) if moves
        )
        parts = parts or f"1 / {self.left:g}"
        into = "tables" if self.tables else f"{len(self.readers)} linear layers"
        return f"{parts} of {self.norm} into {into}"


@dataclass(frozen=True, slots=True)
class AffinePlan:
    """The moves, the reason for every norm that keeps something, and the growing ranges."""

    fusions: tuple[AffineFusion, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    ranges: tuple[RangeWarning, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing moves."""
        return not self.fusions

    def left_out(self, reason: str) -> "AffinePlan":
        """Return the plan to move nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        moved = ((fusion.output, why) for fusion in self.fusions)
        return AffinePlan(refusals=(*self.refusals, *moved))

    def then(self, later: "AffinePlan") -> "AffinePlan":
        """Return both plans as one, with the later refusals."""
        fusions, ranges = self.fusions + later.fusions, self.ranges + later.ranges
        return AffinePlan(fusions=fusions, ranges=ranges, refusals=later.refusals)
