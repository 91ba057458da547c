"""Places: the constants that plans change, named by the node inputs that read them."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfold.graph.channels import Channels


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
