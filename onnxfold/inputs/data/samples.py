"""Data at a path, as samples: arrays, tables, or any other kind; synthetic inputs without one."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxfold.errors import DataError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.data.shards import (
    Array,
    Batch,
    Data,
    DataOptions,
    InputSignature,
    Shard,
    blocks,
    optional,
)
from onnxfold.inputs.data.texts_and_images import (
    IMAGE_SUFFIXES,
    ImageFolder,
    TextFile,
    Tokens,
    find_preprocessor,
    find_tokenizer,
)

# Errors that numpy raises for a file that is damaged or not an array; TypeError for a .npy named
# .npz.
_UNREADABLE = (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Shards of arrays on disk, in the order of their names."""

    kind: ClassVar[str] = "arrays"
    files: tuple[Path, ...]
    signature: InputSignature
    options: DataOptions

    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        left = self.options.rows
        for file in self.files:
            if left == 0:
                break
            part = blocks(str(file), self._rows(file), left, self.options.batch)
            found += part
            left = None if left is None else left - sum(s.stop - s.start for s in part)
        return found

    def _rows(self, file: Path) -> int:
        """Return the rows of a file.

        An unreadable one counts as one row, so that reading it reports why.
        """
        try:
            arrays = self._load(file)
            return len(next(iter(arrays.values())))
        except (DataError, TypeError, StopIteration):
            return 1

    def _load(self, file: Path) -> Mapping[str, Array]:
        try:
            if file.suffix == ".npy":
                return {self._only(file): np.load(file, mmap_mode="r")}
            with np.load(file) as archive:
                return {name: archive[name] for name in archive.files}
        except _UNREADABLE as error:
            raise DataError(
                f"{file}: cannot be read as arrays ({error}); write it with numpy.savez, "
                "or remove it (measure --skip-bad leaves it out)"
            ) from error

    def _only(self, file: Path) -> str:
        if len(self.signature.inputs) != 1:
            listed = ", ".join(f"'{name}'" for name in self.signature.inputs)
            raise DataError(f"{file}: one array, but the inputs are {listed}; give them in a .npz")
        return next(iter(self.signature.inputs))

    def batches(self, shard: Shard) -> Iterator[Batch]:
        arrays = self._load(Path(shard.file))
        sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        wanted = {name: size for name, size in sizes.items() if name in self.signature.inputs}
        if len(set(wanted.values())) > 1:
            told = ", ".join(f"'{name}' {size}" for name, size in wanted.items())
            raise DataError(f"{shard.label}: the arrays have different numbers of rows: {told}")
        mask = self.signature.mask_input(self.options.mask)
        for start in range(shard.start, shard.stop, self.options.batch):
            stop = min(start + self.options.batch, shard.stop)
            part = {name: a[start:stop] if name in wanted else a for name, a in arrays.items()}
            feeds = self.signature.suited(part, shard.label, start)
            kept = None if mask is None else feeds[mask] != 0
            yield Batch(feeds, stop - start, start, kept)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Tables with a column of text, or with one column for each input of the model.

    A shard is a block of rows of one row group (Parquet) or record batch (Arrow).
    """

    kind: ClassVar[str] = "table"
    files: tuple[Path, ...]
    signature: InputSignature
    options: DataOptions
    tokens: Tokens | None

    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        left = self.options.rows
        for file in self.files:
            first = 0
            for group, rows in enumerate(_group_sizes(file)):
                part = blocks(str(file), rows, left, self.options.batch)
                found += [Shard(s.file, first + s.start, first + s.stop, group) for s in part]
                left = None if left is None else left - sum(s.stop - s.start for s in part)
                first += rows
        return found

    def batches(self, shard: Shard) -> Iterator[Batch]:
        first = sum(_group_sizes(Path(shard.file))[: shard.offset])
        table = _group(Path(shard.file), shard.offset)
        table = table.slice(shard.start - first, shard.stop - shard.start)
        if self.tokens is not None:
            yield from self.tokens.batches(self._texts(table, shard), shard)
            return
        mask = self.signature.mask_input(self.options.mask)
        step = self.options.batch
        for start in range(0, len(table), step):
            part = table.slice(start, step)
            row = shard.start + start
            arrays = {
                n: _array(part, n, shard) for n in self.signature.inputs if n in part.schema.names
            }
            feeds = self.signature.suited(arrays, shard.label, row)
            yield Batch(feeds, len(part), row, None if mask is None else feeds[mask] != 0)

    def _texts(self, table: Any, shard: Shard) -> list[str]:
        column = self.options.column
        if column not in table.schema.names:
            listed = ", ".join(f"'{name}'" for name in table.schema.names)
            raise DataError(f"{shard.label}: no column '{column}', but {listed}; give --column")
        texts = table.column(column).to_pylist()
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"{shard.file}, row {shard.start + number}: '{column}' is no text")
        return list(texts)


def column_names(file: Path) -> list[str]:
    """Return the names of a table's columns."""
    if file.suffix == ".parquet":
        return list(_parquet(file).schema_arrow.names)
    return [name for batch in _record_batches(file)[:1] for name in batch.schema.names]


def _array(table: Any, name: str, shard: Shard) -> Any:
    try:
        return np.array(table.column(name).to_pylist())
    except ValueError as error:
        raise DataError(
            f"{shard.label}: the rows of column '{name}' have different lengths; pad them"
        ) from error


def _group_sizes(file: Path) -> list[int]:
    if file.suffix == ".parquet":
        metadata = _parquet(file).metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return [len(batch) for batch in _record_batches(file)]


def _group(file: Path, number: int) -> Any:
    if file.suffix == ".parquet":
        return _parquet(file).read_row_group(number)
    arrow = optional("pyarrow", "pyarrow", "reading tables")
    return arrow.Table.from_batches([_record_batches(file)[number]])


def _parquet(file: Path) -> Any:
    arrow = optional("pyarrow", "pyarrow", "reading Parquet")
    try:
        return optional("pyarrow.parquet", "pyarrow", "reading Parquet").ParquetFile(file)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read as Parquet: {error}") from error


def _record_batches(file: Path) -> list[Any]:
    """Return the record batches of an Arrow stream, mapped, as the datasets library writes it."""
    arrow = optional("pyarrow", "pyarrow", "reading Arrow files")
    try:
        return list(arrow.ipc.open_stream(arrow.memory_map(str(file))))
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read as an Arrow stream: {error}") from error


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

    kind: ClassVar[str] = "synthetic"
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
    if suffix in IMAGE_SUFFIXES:
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
    for kind in (_ARRAYS, _TABLES, _TEXTS, IMAGE_SUFFIXES):
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
