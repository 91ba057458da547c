"""Which norms give one channel less, or again all, and which weights change, as data."""

from dataclasses import dataclass, field

from onnxfold.passes.compression.plan import CompressionPlan, Shortened
from onnxfold.passes.norms_plan import NormsPlan


@dataclass(frozen=True, slots=True)
class ReadersPlan(NormsPlan):
    """The norms whose results lose, or get back, their last channel, and the weights that read it.

    ``between``: what stands between them and the linear layers; ``layers``: the weights, along the
    axis that they are multiplied over; ``layouts``: what moves their elements before they are read.
    ``more``: -1 or 1 channel.
    """

    between: CompressionPlan = field(default_factory=CompressionPlan)
    layers: tuple[Shortened, ...] = ()
    layouts: tuple[Shortened, ...] = ()
    more: int = -1
