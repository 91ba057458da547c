"""The data at a path, of any kind, or synthetic inputs without one; the first rows as samples."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxfold.errors import DataError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.data.arrays import ArrayFiles
from onnxfold.inputs.data.images import SUFFIXES, ImageFolder, find_preprocessor
from onnxfold.inputs.data.input_signature import InputSignature
from onnxfold.inputs.data.shards import Array, Batch, Data, DataOptions, Shard
from onnxfold.inputs.data.table_files import TableFiles, column_names
from onnxfold.inputs.data.text import TextFile, Tokens, find_tokenizer

_ARRAYS = frozenset({".npz", ".npy"})
_TABLES = frozenset({".parquet", ".arrow"})
_TEXTS = frozenset({".txt", ".jsonl"})
_KINDS = "a .npz, .npy, .txt, .jsonl, .parquet or .arrow file, or a folder of one kind, or images"
_ROWS = 64
_DRAWN_TOGETHER = 2  # the batch of the first sample of a draw
DEFAULT_ROWS = 32


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Draws of two rows each, every one with its own seed, which do not represent real data.

    The inputs are drawn once, in :meth:`shards`, since they need the graph; they are small.
    """

    drawn: tuple[dict[str, np.ndarray], ...] = field(repr=False)
    signature: InputSignature
    options: DataOptions

    @staticmethod
    def of(model: ir.Model, signature: InputSignature, options: DataOptions) -> "Synthetic":
        """Draw inputs for a model; raises UsageError if an input cannot be drawn."""
        count = -(-(options.rows or _ROWS) // _DRAWN_TOGETHER)
        drawn = tuple(
            make_inputs(model, InputSpec(), count=1, seed=options.seed + number)[0]
            for number in range(count)
        )
        return Synthetic(drawn, signature, options)

    @property
    def kind(self) -> str:
        return "synthetic"

    def shards(self) -> list[Shard]:
        step = _DRAWN_TOGETHER
        return [
            Shard("synthetic inputs", number * step, (number + 1) * step, number)
            for number in range(len(self.drawn))
        ]

    def batches(self, shard: Shard) -> Iterator[Batch]:
        feeds = self.drawn[shard.offset]
        mask = self.signature.mask_input(self.options.mask)
        kept = None if mask is None else feeds[mask] != 0
        yield Batch(feeds, shard.stop - shard.start, shard.start, kept)


def open_data(
    data: Path | None, model: ir.Model, model_path: Path | None, options: DataOptions
) -> Data:
    """Return the data at a path, by the names of its files, or synthetic inputs without a path.

    Raises DataError for an unknown kind of data, UsageError for data without a required helper (a
    tokenizer, a preprocessing file).
    """
    signature = InputSignature.of(model)
    if data is None:
        return Synthetic.of(model, signature, options)
    files, suffix = _files(data)
    if suffix in _ARRAYS:
        return ArrayFiles(files, signature, options)
    if suffix in SUFFIXES:
        return ImageFolder(files, find_preprocessor(model_path, data), signature, options)
    if suffix in _TABLES:
        tokens = None
        if options.tokenizer is not None or not _has_columns(files[0], signature):
            tokens = Tokens(find_tokenizer(options, model_path, data), signature, options)
        return TableFiles(files, signature, options, tokens)
    if len(files) > 1:
        raise UsageError(f"{data}: several files of text; give one of them, or join them")
    tokens = Tokens(find_tokenizer(options, model_path, data), signature, options)
    return TextFile(files[0], tokens)


def _files(data: Path) -> tuple[tuple[Path, ...], str]:
    """Return the files of one kind at a path, sorted, and their suffix."""
    if not data.exists():
        raise DataError(f"there is no data at '{data}'; give {_KINDS}")
    found = [data] if data.is_file() else sorted(p for p in data.iterdir() if p.is_file())
    for kind in (_ARRAYS, _TABLES, _TEXTS, SUFFIXES):
        files = tuple(path for path in found if path.suffix.lower() in kind)
        if files:
            return files, files[0].suffix.lower()
    raise DataError(f"'{data}' contains no data; name {_KINDS}")


def _has_columns(file: Path, signature: InputSignature) -> bool:
    return signature.inputs.keys() <= set(column_names(file))


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
