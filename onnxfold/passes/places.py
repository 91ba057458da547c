"""Places: the constants that plans change, named by the node inputs that read them."""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, Reader
from onnxfold.graph.channels import Channels


@dataclass(frozen=True, slots=True, order=True)
class ReaderRef:
    """An input of a node; the node is named by the reference of its first output."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class ChangedWeight:
    """A weight W, by reference, that changes along every set of a fiber: to W R, or W + c."""

    value: str
    fiber: Fiber


@dataclass(frozen=True, slots=True)
class Place:
    """A constant that changes along ``channels``, in its own coordinates.

    ``reader`` is the node input that reads it. ``copy``: this reader gets a changed copy and the
    other readers keep the original. ``value`` empty: the constant is new and starts as zeros;
    ``behind``: a new Add after the reader's node adds it, along ``channels`` of its output.
    ``start``: the first element of this constant in a vector that several constants share.
    ``halves``: the number of its rows if only their first halves change, otherwise 0;
    ``rows``: the number of them if it has two axes and is new. ``fixed``: codes that stay;
    ``channels`` are the decoded numbers'.
    """

    value: str
    reader: ReaderRef
    channels: Channels
    nbytes: int = 0
    copy: bool = False
    behind: bool = False
    start: int = 0
    fixed: bool = False
    halves: int = 0
    rows: int = 0


def ref_of(info: ModelInfo, reader: Reader) -> ReaderRef:
    """Return a reader by reference."""
    return ReaderRef(info.node_ref(reader.node), reader.index)


def place_of(
    info: ModelInfo, value: ir.Value, reader: Reader, channels: Channels, *, copy: bool = False
) -> Place:
    """Return the place of a constant that the reader, or a layout of it, reads."""
    tensor = info.tensor(value)
    nbytes = 0 if tensor is None else tensor.nbytes
    return Place(info.ref(value), ref_of(info, reader), channels, nbytes, copy)
