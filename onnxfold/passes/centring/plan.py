"""The centerings and folds, as frozen data, and why the rest is left."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import combinations

from onnxfold.graph import Fiber
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Fold:
    """A LayerNorm that becomes an RMSNorm, or x - mean(x) that becomes x; ``output``: its result.

    ``writers`` are the weights centered for it that no earlier norm needed.
    """

    norm: str
    output: str
    writers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightCentring:
    """A weight W that becomes P W along ``fiber``.

    ``readers`` and ``norms`` empty: in place, for all of its readers. Otherwise the weight is
    split: these node inputs and these folded norms get a centered copy, the others the original.
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
    """Return one centering for all parts of a weight along one fiber, or None if they overlap.

    Laws: P_M P_N = P_(M or N) for parts M and N of the same sets, and P_M Q_N = Q_N P_M for parts
    of other sets if M and N have no element in common.
    """
    by_value: dict[str, list[WeightCentring]] = {}
    for weight in weights:
        by_value.setdefault(weight.value, []).append(weight)
    result: list[WeightCentring] = []
    for same in by_value.values():
        if any(weight.fiber.part is not None for weight in same):
            if any(replace(weight, fiber=same[0].fiber) != same[0] for weight in same):
                return None
            fibers = joined_fibers(weight.fiber for weight in same)
            if not all(a.apart_from(b) for a, b in combinations(fibers, 2)):
                return None
            result += (replace(same[0], fiber=fiber) for fiber in fibers)
        else:
            result += same
    return tuple(result)


def joined_fibers(fibers: Iterable[Fiber]) -> list[Fiber]:
    """Return as few fibers as possible of the same sets: parts with equal digits are joined."""
    result: list[Fiber] = []
    for fiber in fibers:
        together = (known.joined(fiber) for known in result)
        number, whole = next(((n, f) for n, f in enumerate(together) if f), (len(result), fiber))
        result[number:] = [whole, *result[number + 1 :]]
    return result


@dataclass(frozen=True, slots=True)
class Insertion:
    """A centering node after ``value``, for the given node inputs and the given folded norms."""

    value: str
    fiber: Fiber
    readers: tuple[ReaderRef, ...]
    norms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CentringPlan:
    """The centerings, why the rest is left (by the norm's output), and the estimated effect.

    ``parts`` are the values whose parts are centered together with such a part of a weight.
    ``gain_ps`` and ``cost_ps`` are picoseconds with every symbolic dimension counted once; a plan
    never costs more than it gains. ``operators``: how many more a session executes, at most: Adds
    of betas that stay, additions that it would fuse with a LayerNorm, and centerings. ``added_ps``:
    the cost of the first two, which is not part of the gain. ``centrings``: separate subtractions
    of means that are dropped; their refusals are among ``refusals``.
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
    centrings: tuple[Fold, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.folds or self.centrings)

    def then(self, later: "CentringPlan") -> "CentringPlan":
        """Return both plans as one, with the later refusals."""
        sums = {
            each.name: getattr(self, each.name) + getattr(later, each.name)
            for each in fields(self)
            if each.name != "refusals"
        }
        return replace(later, **sums)
