"""Inputs in .npz and .npy files: arrays under the names of the inputs, rows along their axis 0."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxfold.errors import DataError
from onnxfold.inputs.data.input_signature import InputSignature
from onnxfold.inputs.data.shards import Array, Batch, DataOptions, Shard, blocks

# Errors that numpy raises for a file that is damaged or not an array; TypeError for a .npy named
# .npz.
_UNREADABLE = (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """Shards of arrays on disk, in the order of their names."""

    files: tuple[Path, ...]
    signature: InputSignature
    options: DataOptions

    @property
    def kind(self) -> str:
        return "arrays"

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
