"""Common to all kinds of data: shards, batches, and messages about faults."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onnxfold.errors import DependencyError

Array = npt.NDArray[Any]
# A shard is the unit of work, of what a bad row costs with --skip-bad, and of resuming.
_SHARD_ROWS = 256


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows ``start`` to ``stop`` of a file; ``offset`` locates the first in a format of its own."""

    file: str
    start: int
    stop: int
    offset: int = 0

    @property
    def label(self) -> str:
        """Name the shard for a person."""
        return f"{self.file}, rows {self.start} to {self.stop - 1}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs by name, the number of rows, and which tokens count [rows, tokens] if padding may."""

    feeds: Mapping[str, Array]
    rows: int
    first_row: int
    mask: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class DataOptions:
    """How to read data.

    ``rows`` limits the rows; ``length`` is the most tokens of a text; ``column`` the name of the
    text in JSONL and tables; ``mask`` the input that is 0 at padding.
    """

    batch: int = 8
    rows: int | None = None
    length: int = 128
    column: str = "text"
    tokenizer: Path | None = None
    mask: str | None = None
    seed: int = 0


class Data(Protocol):
    """Rows of data; it must be picklable, because it is sent to worker processes."""

    @property
    def kind(self) -> str:
        """Name the kind of data, for the report."""

    def shards(self) -> list[Shard]:
        """Return the shards in order, the same for the same files and options."""

    def batches(self, shard: Shard) -> Iterator[Batch]:
        """Yield the rows of a shard; raises DataError, which names the shard, row and remedy."""


def blocks(file: str, rows: int, limit: int | None, batch: int) -> list[Shard]:
    """Cut rows into shards of whole batches, at most ``limit`` rows in all."""
    rows = rows if limit is None else min(rows, limit)
    step = max(batch, _SHARD_ROWS // batch * batch)
    return [Shard(file, start, min(start + step, rows)) for start in range(0, rows, step)]


def optional(module: str, package: str, purpose: str, extra: str = "measure") -> Any:
    """Import an optional dependency; raises DependencyError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DependencyError(
            f"{purpose} needs {package}, which is not installed: pip install 'onnxfold[{extra}]'"
        ) from error
