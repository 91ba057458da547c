"""Common to all kinds of data: the inputs as requirements on it, shards, batches, and faults."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import DataError, DependencyError, UsageError
from onnxfold.graph import Dim
from onnxfold.inputs.bound_sizes import symbols_of
from onnxfold.inputs.roles import MASK, index_range

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


@dataclass(frozen=True, slots=True)
class Input:
    """One input: its numpy type, dims (None if unknown), and the indices that it may contain."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[Dim, ...] | None
    low: int | None
    high: int | None
    is_mask: bool

    def suited(self, array: Array, where: str, first_row: int) -> Array:
        """Return the array in the type of the input; raises DataError if it does not fit."""
        self._check_shape(array, where)
        if array.dtype != self.dtype:
            if not np.can_cast(array.dtype, self.dtype, "same_kind"):
                raise DataError(
                    f"{where}: input '{self.name}' is {self.dtype}, the data has {array.dtype}; "
                    "convert the data"
                )
            array = array.astype(self.dtype)
        self._check_range(array, where, first_row)
        return array

    def _check_shape(self, array: Array, where: str) -> None:
        if self.dims is None:
            return
        fits = len(array.shape) == len(self.dims) and all(
            not isinstance(dim, int) or dim == size
            for dim, size in zip(self.dims, array.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("?" if str(d).startswith("?") else str(d) for d in self.dims)
            raise DataError(
                f"{where}: input '{self.name}' is [{wanted}], the data has {list(array.shape)}; "
                "reshape the data (measure takes --batch and --length)"
            )

    def _check_range(self, array: Array, where: str, first_row: int) -> None:
        if self.low is None or self.high is None:
            return
        bad = np.argwhere((array < self.low) | (array >= self.high))
        if len(bad):
            value = array[tuple(bad[0])]
            raise DataError(
                f"{where}: row {first_row + int(bad[0][0])} has {value} in input '{self.name}', "
                f"whose table takes {self.low} to {self.high - 1}; use the tokenizer of "
                "this model (measure --skip-bad leaves such rows out)"
            )


@dataclass(frozen=True, slots=True)
class InputSignature:
    """The inputs that a model requires, by name."""

    inputs: Mapping[str, Input]

    @staticmethod
    def of(model: ir.Model) -> "InputSignature":
        """Return the signature of a model; raises UsageError for inputs that are not tensors."""
        values = [value for value in model.graph.inputs if not value.is_initializer()]
        return InputSignature({str(value.name): _input(model, value) for value in values})

    def mask_input(self, name: str | None) -> str | None:
        """Return the input that is 0 at padding: the named one, or the only mask of rank 2."""
        if name is not None:
            if name not in self.inputs:
                listed = ", ".join(f"'{known}'" for known in self.inputs)
                raise UsageError(f"--mask names '{name}', but the model's inputs are {listed}")
            if len(self.inputs[name].dims or ()) != 2:
                raise UsageError(f"--mask '{name}' must be an input of [batch, tokens]")
            return name
        masks = [i.name for i in self.inputs.values() if i.is_mask and len(i.dims or ()) == 2]
        return masks[0] if len(masks) == 1 else None

    def mask_dims(self, name: str | None) -> tuple[Dim, ...]:
        """Return the dims of the mask as the graph names them, or () without a mask."""
        return () if name is None else self.inputs[name].dims or ()

    def suited(self, feeds: Mapping[str, Array], where: str, first_row: int) -> dict[str, Array]:
        """Return the feeds in the types of the inputs.

        Raises DataError for those that do not fit.
        """
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            listed = ", ".join(f"'{name}'" for name in feeds) or "no array"
            raise DataError(
                f"{where}: nothing for input '{missing[0]}' of the model; the data has {listed}: "
                "name the arrays as the inputs"
            )
        return {
            name: known.suited(np.asarray(feeds[name]), where, first_row)
            for name, known in self.inputs.items()
        }


def _input(model: ir.Model, value: ir.Value) -> Input:
    if value.dtype is None or value.dtype is ir.DataType.STRING:
        raise UsageError(
            f"input '{value.name}' is not a tensor of numbers: no data can be read for it"
        )
    limits = index_range(model, value) if value.dtype.is_integer() else None
    return Input(
        name=str(value.name),
        dtype=np.dtype(value.dtype.numpy()),
        dims=symbols_of(value),
        low=None if limits is None else limits.low,
        high=None if limits is None else limits.high,
        is_mask=MASK.search(str(value.name)) is not None,
    )
