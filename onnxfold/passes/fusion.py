"""What affine fusion does, as frozen data: which constants change, for which readers, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onnxfold.graph import AxisBlock
from onnxfold.graph.channels import Channels

__all__ = ["Absorption", "AffineFusion", "Place", "ReaderRef", "ScaleFusion"]


@dataclass(frozen=True, slots=True, order=True)
class ReaderRef:
    """An input of a node; the node is named by the reference of its first output."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class Place:
    """A constant that changes along ``channels``, in its own coordinates.

    ``reader`` is the node input that reads it.  ``copy``: this reader gets a changed copy and the
    other readers keep the original.  ``value`` empty: the constant is new and starts as zeros;
    ``behind``: a new Add behind the reader's node adds it, along ``channels`` of its output.
    ``start``: of a vector that several constants share, the first element that is this one's.
    """

    value: str
    reader: ReaderRef
    channels: Channels
    nbytes: int = 0
    copy: bool = False
    behind: bool = False
    start: int = 0


@dataclass(frozen=True, slots=True)
class Absorption:
    """A linear reader: its weight W takes gamma, its bias takes factor * W beta.

    ``outer`` are the channels of the reader's output in W.  ``parts``: the biases behind a Split of
    the output, in place of ``bias``; each takes its part of W beta.
    """

    reader: ReaderRef
    weight: Place
    outer: Channels
    bias: Place | None = None
    factor: float = 1.0
    parts: tuple[Place, ...] = ()

    @property
    def biases(self) -> tuple[Place, ...]:
        """The constants that take W beta, or a part of it."""
        return self.parts if self.bias is None else (self.bias,)

    def without_beta(self) -> Absorption:
        """Return what is left to do where beta does not move."""
        return replace(self, bias=None, parts=())


@dataclass(frozen=True, slots=True)
class AffineFusion:
    """A norm whose gamma or beta or both move into all of its readers.

    ``output`` is the reference of the norm's result.  ``gamma`` without ``beta`` leaves
    beta / gamma behind, where the norm has a beta.
    """

    norm: str
    output: str
    gamma: bool
    beta: bool
    readers: tuple[Absorption, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """All constants that change."""
        return tuple(
            place
            for reader in self.readers
            for place in (reader.weight if self.gamma else None, *reader.biases)
            if place is not None
        )

    def __str__(self) -> str:
        parts = " and ".join(
            part for part, moves in (("gamma", self.gamma), ("beta", self.beta)) if moves
        )
        return f"{parts} of {self.norm} into {len(self.readers)} linear layers"

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> AffineFusion:
        """Read what ``dataclasses.asdict`` gave."""
        return AffineFusion(
            document["norm"],
            document["output"],
            document["gamma"],
            document["beta"],
            tuple(_absorption(row) for row in document["readers"]),
        )


@dataclass(frozen=True, slots=True)
class ScaleFusion:
    """An operator z = scale * y + shift that goes, for the linear layer before it does it.

    ``output`` is the reference of z, ``writer`` that of the linear layer's result; ``scaled`` are
    the constants that take the scale, ``shifted`` the one that takes the shift after it.  ``part``:
    start, length and total of the channels that the scale is of, behind a Split of all of them.
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

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ScaleFusion:
        """Read what ``dataclasses.asdict`` gave."""
        shifted, part = document["shifted"], document["part"]
        return ScaleFusion(
            document["name"],
            document["output"],
            document["writer"],
            tuple(_place(row) for row in document["scaled"]),
            None if shifted is None else _place(shifted),
            None if part is None else (part[0], part[1], part[2]),
        )


def _absorption(document: Mapping[str, Any]) -> Absorption:
    bias = document["bias"]
    return Absorption(
        ReaderRef(**document["reader"]),
        _place(document["weight"]),
        _channels(document["outer"]),
        None if bias is None else _place(bias),
        document["factor"],
        tuple(_place(row) for row in document["parts"]),
    )


def _place(document: Mapping[str, Any]) -> Place:
    return Place(
        document["value"],
        ReaderRef(**document["reader"]),
        _channels(document["channels"]),
        document["nbytes"],
        document["copy"],
        document["behind"],
        document["start"],
    )


def _channels(document: Mapping[str, Any]) -> Channels:
    return Channels(tuple(AxisBlock(**digit) for digit in document["digits"]))
