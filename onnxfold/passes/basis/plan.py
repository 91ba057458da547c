"""What becomes of the basis of a stream, as frozen data."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import Array, Float64
from onnxfold.passes.base import Settings
from onnxfold.passes.places import ChangedWeight, Place, ReaderRef
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.rotations import RotationKind, rotation

LARGEST_HALF, SMALLEST_NORMAL_HALF = 65504.0, 2.0**-14


Keep = Callable[[ir.Value, Array], None]


class Observe(Protocol):
    """A float64 run of a model (pipeline/basis_passes.py).

    Returns the number and the origin of its inputs, or the reason if there is none.
    """

    def __call__(
        self, info: ModelInfo, settings: Settings, keep: Keep, *, data_alone: bool = False
    ) -> tuple[int, str] | str: ...


@dataclass(frozen=True, slots=True)
class RotatedStream:
    """What is multiplied by one orthogonal matrix, by the value that it was found from.

    ``norms``: those that pass it on; ``values``: how many values are times R; ``substituted``:
    there is no Hadamard matrix of the size, so R is random.
    """

    name: str
    size: int
    kind: RotationKind
    seed: int
    weights: tuple[ChangedWeight, ...]
    norms: tuple[str, ...] = ()
    values: int = 0
    substituted: bool = False

    def matrix(self) -> Float64:
        """Return R."""
        return rotation(self.kind, self.size, self.seed)


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """The streams, or heads, that are rotated, and why others are not."""

    streams: tuple[RotatedStream, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.streams

    def left_out(self, reason: str) -> "RotationPlan":
        """Return the plan to rotate nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        return RotationPlan((), (*self.refusals, *((each.name, why) for each in self.streams)))

    def to_json(self) -> dict[str, Any]:
        """Return the report's form."""
        return {
            "streams": [_rotation_row(stream) for stream in self.streams],
            "refusals": [{"name": name, **why.to_json()} for name, why in self.refusals],
        }


def _rotation_row(stream: RotatedStream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "size": stream.size,
        "matrix": "random" if stream.substituted else stream.kind.value,
        "substituted": stream.substituted,
        "seed": stream.seed,
        "weights": [weight.value for weight in stream.weights],
        "norms": list(stream.norms),
        "values": stream.values,
    }


@dataclass(frozen=True, slots=True)
class ScaledPlace:
    """A constant that is multiplied by c^power."""

    place: Place
    power: int


@dataclass(frozen=True, slots=True)
class NewEpsilon:
    """Where the epsilon of a norm stands, and the number that it becomes.

    ``reader``: the node, and the input that holds it; -1 for its attribute.
    """

    reader: ReaderRef
    number: float


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The largest magnitude of a value of a stream, and what it becomes.

    ``share`` of float16's largest number; ``bits_above_subnormal``: how often it can be halved
    before it is smaller than float16's smallest normal number.
    """

    value: str
    before: float
    after: float
    share: float
    bits_above_subnormal: float


@dataclass(frozen=True, slots=True)
class ScaledStream:
    """A stream that becomes 2^-exponent times what it was, by the norm that it was found from.

    ``opened``: unchanged values, and the readers that read their product with c. ``subnormal``:
    numbers of the constants that become too small to keep all of their digits.
    ``largest`` is 0 where nothing was measured.
    """

    norm: str
    exponent: int
    norms: tuple[str, ...]
    places: tuple[ScaledPlace, ...]
    epsilons: tuple[NewEpsilon, ...]
    opened: tuple[tuple[str, tuple[ReaderRef, ...]], ...] = ()
    values: tuple[ValueRange, ...] = ()
    subnormal: int = 0

    @property
    def factor(self) -> float:
        """What the stream is multiplied by: c."""
        return 2.0**-self.exponent


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The streams that are scaled, those that need not be, and why others cannot be.

    ``samples``: how many inputs the ranges are of, and ``data`` where they come from, in words.
    """

    streams: tuple[ScaledStream, ...] = ()
    in_range: tuple[ScaledStream, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    samples: int = 0
    data: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.streams

    def factors(self) -> tuple[tuple[Place, float], ...]:
        """Return every constant that changes, and what it is multiplied by.

        A constant between two streams takes the factors of both: c of the one that its layer
        writes, 1/c of the one that it reads.
        """
        found: dict[tuple[str, ReaderRef], tuple[Place, float]] = {}
        for stream in self.streams:
            for each in stream.places:
                key = each.place.value, each.place.reader
                place, factor = found.get(key, (each.place, 1.0))
                place = replace(place, copy=place.copy or each.place.copy)
                found[key] = place, factor * stream.factor**each.power
        return tuple((place, factor) for place, factor in found.values() if factor != 1)

    def left_out(self, reason: str) -> "ScalePlan":
        """Return the plan to scale nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        refused = (*self.refusals, *((stream.norm, why) for stream in self.streams))
        return ScalePlan((), self.in_range, refused, self.samples, self.data)

    def to_json(self) -> dict[str, Any]:
        """Return the report's form."""
        every = (*self.streams, *self.in_range)
        return {
            "streams": [_stream_row(stream) for stream in every],
            "refusals": [{"norm": norm, **why.to_json()} for norm, why in self.refusals],
            "samples": self.samples,
            "data": self.data,
        }


def _stream_row(stream: ScaledStream) -> dict[str, Any]:
    return {
        "norm": stream.norm,
        "norms": list(stream.norms),
        "exponent": stream.exponent,
        "weights": sorted({each.place.value for each in stream.places}),
        "inserted": [value for value, _ in stream.opened],
        "subnormal": stream.subnormal,
        "values": [asdict(value) for value in stream.values],
    }
