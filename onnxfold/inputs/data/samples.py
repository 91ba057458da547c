"""The first rows of data as samples for a check."""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxfold.errors import DataError, UsageError
from onnxfold.inputs.data.choose import open_data
from onnxfold.inputs.data.input_signature import InputSignature
from onnxfold.inputs.data.shards import Array, Batch, DataOptions, Shard

DEFAULT_ROWS = 32


@dataclass(frozen=True, slots=True)
class DataSamples:
    """Inputs by name for each sample, the total number of rows, and whether there are more."""

    path: Path
    feeds: tuple[dict[str, Array], ...]
    rows: int
    more: bool

    @property
    def label(self) -> str:
        """A description of the data."""
        return f"{'the first ' if self.more else ''}{self.rows} rows of {self.path}"


def read_samples(
    path: Path, model: ir.Model, model_path: Path | None, rows: int = DEFAULT_ROWS
) -> DataSamples:
    """Read the first rows of data, one per sample, or as many as the model's batch has.

    Raises UsageError for an invalid number of rows, DataError for data that cannot be read, does
    not fit the model, or contains NaN.
    """
    if rows < 1:
        raise UsageError(f"--rows must be 1 or more, not {rows}")
    signature = InputSignature.of(model)
    batch = _batch(signature)
    kept = max(1, rows // batch)
    opened = open_data(path, model, model_path, DataOptions(batch, rows=kept * batch + 1))
    shards = opened.shards()
    whole = (_whole(shard, batch) for shard in shards)
    batches = ((shard, found) for shard in whole for found in opened.batches(shard))
    samples = [_sample(shard, found) for shard, found in islice(batches, kept)]
    if not samples:
        needed = f", and the model takes {batch} together" if batch > 1 else ""
        raise DataError(f"{path}: it holds {sum(_size(s) for s in shards)} rows{needed}")
    count = len(samples) * batch
    return DataSamples(path, tuple(samples), count, sum(map(_size, shards)) > count)


def _batch(signature: InputSignature) -> int:
    """Return the rows that a model processes together: its fixed batch, otherwise one."""
    first = (i.dims[0] for i in signature.inputs.values() if i.dims)
    return max((dim for dim in first if isinstance(dim, int)), default=1)


def _size(shard: Shard) -> int:
    return shard.stop - shard.start


def _whole(shard: Shard, batch: int) -> Shard:
    """Return the shard without rows that do not fill a batch."""
    return replace(shard, stop=shard.start + _size(shard) // batch * batch)


def _sample(shard: Shard, found: Batch) -> dict[str, Array]:
    feeds = {name: np.asarray(array) for name, array in found.feeds.items()}
    for name, array in feeds.items():
        bad = np.argwhere(np.atleast_1d(np.isnan(array)))
        if len(bad):
            row = found.first_row + int(bad[0][0])
            raise DataError(f"{shard.file}: row {row} has NaN in input '{name}'; remove it")
    return feeds
