"""Parquet files, and data sets of Hugging Face's datasets library on disk, by pyarrow."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.errors import DataError
from onnxfold.inputs.data.input_signature import InputSignature
from onnxfold.inputs.data.shards import Batch, DataOptions, Shard, blocks, optional
from onnxfold.inputs.data.text import Tokens


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Tables with a column of text, or with one column for each input of the model.

    A shard is a block of rows of one row group (Parquet) or record batch (Arrow).
    """

    files: tuple[Path, ...]
    signature: InputSignature
    options: DataOptions
    tokens: Tokens | None

    @property
    def kind(self) -> str:
        return "table"

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
