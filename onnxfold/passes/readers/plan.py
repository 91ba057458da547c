"""Which norms give one channel less, or again all, and which weights change, as data."""

from dataclasses import dataclass, field

from onnxfold.passes.compression.plan import CompressionPlan, Shortened
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class ReadersPlan:
    """The values that lose, or get back, their last channel, and the weights that read them.

    ``starts``: what norms give; ``between``: what stands between them and the linear layers;
    ``layers``: the weights, along the axis that they are multiplied over; ``layouts``: what moves
    their elements before they are read.  ``more``: -1 or 1 channel.
    """

    starts: tuple[str, ...] = ()
    between: CompressionPlan = field(default_factory=CompressionPlan)
    layers: tuple[Shortened, ...] = ()
    layouts: tuple[Shortened, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    more: int = -1

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.starts

    def left_out(self, reason: str) -> "ReadersPlan":
        """Return the plan to change no reader."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        refusals = (*self.refusals, *((start, why) for start in self.starts))
        return ReadersPlan(refusals=refusals, more=self.more)
