"""The kind of data at a path, or synthetic inputs without a path."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxfold.errors import DataError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.data.arrays import ArrayFiles
from onnxfold.inputs.data.images import SUFFIXES, ImageFolder, find_preprocessor
from onnxfold.inputs.data.input_signature import InputSignature
from onnxfold.inputs.data.shards import Batch, Data, DataOptions, Shard
from onnxfold.inputs.data.table_files import TableFiles, column_names
from onnxfold.inputs.data.text import TextFile, Tokens, find_tokenizer

_ARRAYS = frozenset({".npz", ".npy"})
_TABLES = frozenset({".parquet", ".arrow"})
_TEXTS = frozenset({".txt", ".jsonl"})
_KINDS = "a .npz, .npy, .txt, .jsonl, .parquet or .arrow file, or a folder of one kind, or images"
_ROWS = 64
_DRAWN_TOGETHER = 2  # the batch of the first sample of a draw


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
