"""Which streams lose their last channel, as frozen data, and why the others keep it."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal, RefusalCode


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
class CompressionPlan:
    """The norms that become CRMSNorms, by reference, and the streams between weights and norms.

    ``entries`` are values that keep their last channel, and that ``entering`` node inputs and the
    norms read without it.  ``remaining`` are all norms of the model.
    """

    norms: tuple[str, ...] = ()
    weights: tuple[Shortened, ...] = ()
    values: tuple[Shortened, ...] = ()
    entries: tuple[Shortened, ...] = ()
    entering: tuple[ReaderRef, ...] = ()
    shapes: tuple[ShapeChange, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    remaining: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.norms

    def left_out(self, reason: str) -> CompressionPlan:
        """Return the plan to compress nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        refusals = (*self.refusals, *((norm, why) for norm in self.norms))
        return CompressionPlan(refusals=refusals, remaining=self.remaining)
