"""What is centred and what folds, as frozen data, and why the rest is left."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onnxfold.graph import Fiber
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Fold:
    """A LayerNorm that becomes an RMSNorm; ``output`` is the reference of its result.

    ``writers`` are the weights that are centred for it and that no earlier norm asked for.
    """

    norm: str
    output: str
    writers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightCentring:
    """A weight W that becomes P W along ``fiber``.

    ``readers`` and ``norms`` empty: in place, for all of its readers.  Otherwise the weight is
    split: these node inputs and these folded norms get a centred copy, the others the original.
    """

    value: str
    fiber: Fiber
    nbytes: int
    readers: tuple[ReaderRef, ...] = ()
    norms: tuple[str, ...] = ()

    @property
    def split(self) -> bool:
        """Whether the weight is stored twice."""
        return bool(self.readers or self.norms)


def joined(weights: Iterable[WeightCentring]) -> tuple[WeightCentring, ...] | None:
    """Return one centring for all parts of a weight, None where it is centred otherwise as well.

    Law: P_M P_N = P_(M or N) for parts M and N of the same sets.
    """
    by_value: dict[str, list[WeightCentring]] = {}
    for weight in weights:
        by_value.setdefault(weight.value, []).append(weight)
    result: list[WeightCentring] = []
    for first, *others in by_value.values():
        if all(weight.fiber.part is None for weight in (first, *others)):
            result += (first, *others)
            continue
        fiber = first.fiber
        for weight in others:
            together = fiber.joined(weight.fiber)
            if together is None or replace(weight, fiber=first.fiber) != first:
                return None
            fiber = together
        result.append(replace(first, fiber=fiber))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Insertion:
    """A centring node after ``value``, for the given node inputs and the given folded norms."""

    value: str
    fiber: Fiber
    readers: tuple[ReaderRef, ...]
    norms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CentringPlan:
    """What is centred, why the rest is left (by the norm's output), and the estimated effect.

    ``parts`` are the values of which a part is centred with such a part of a weight.
    ``gain_ps`` and ``cost_ps`` are picoseconds with every symbolic dimension counted once; a plan
    never costs more than it gains.  ``operators``: how many more a session executes, at most: Adds
    of betas that stay, additions that it would join with a LayerNorm, and centrings.  ``added_ps``:
    what the first two take, which is no part of the gain.
    """

    folds: tuple[Fold, ...] = ()
    weights: tuple[WeightCentring, ...] = ()
    insertions: tuple[Insertion, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    gain_ps: int = 0
    cost_ps: int = 0
    parts: tuple[tuple[str, Fiber], ...] = ()
    operators: int = 0
    added_ps: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.folds
