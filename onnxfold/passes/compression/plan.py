"""Which streams lose their last channel, as frozen data, and why the others keep it."""

from dataclasses import dataclass

from onnxfold.passes.norms_plan import NormsPlan
from onnxfold.passes.places import ReaderRef


@dataclass(frozen=True, slots=True)
class Shortened:
    """A value or a weight, by reference, that loses its last element along an axis."""

    value: str
    axis: int


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """A node input that tells a shape, of which the entry of ``axis`` becomes one less."""

    reader: ReaderRef
    axis: int


@dataclass(frozen=True, slots=True)
class CompressionPlan(NormsPlan):
    """The norms that become CRMSNorms, or RMSNorms again, and the streams between weights and them.

    ``entries`` are values that keep their last channel, and that ``entering`` node inputs and the
    norms read without it.
    """

    weights: tuple[Shortened, ...] = ()
    values: tuple[Shortened, ...] = ()
    entries: tuple[Shortened, ...] = ()
    entering: tuple[ReaderRef, ...] = ()
    shapes: tuple[ShapeChange, ...] = ()
