"""A model that is written under temporary names, and the renames that publish it.

Each step of publishing is one rename within a file system: first the data, under an unused name,
then the model. A kill between any two steps leaves the input and the previous output whole, and at
worst a hidden folder or a data file that nothing uses. Data with the name of what it replaces is
published twice: under an unused name, and, once no model needs the old data, under its own.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onnxfold.errors import InvariantError, ModelError
from onnxfold.model_io.data_homes import Owned, free_names, home, rename_data
from onnxfold.model_io.messages import show
from onnxfold.model_io.staging import StagingFolder, lock_file, place, sync


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """The published files and their total size.

    shards: its data files; shared: data files of the source that it refers to.
    """

    model: Path
    shards: tuple[Path, ...]
    nbytes: int
    shared: tuple[Path, ...] = ()

    @property
    def data(self) -> Path | None:
        """The data file, the first if there are several, or None."""
        return self.shards[0] if self.shards else None


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Names of the data files of a staged model, and locations in files of its source."""

    written: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


class StagedModel:
    """A model written completely, in a hidden folder next to its destination.

    `path` can be loaded as it is: its external data is in the same folder under the final name.
    Leaving the context, or `close`, deletes what was not committed.
    """

    def __init__(
        self, folder: StagingFolder, final: Path, data: DataFiles, source: Path | None
    ) -> None:
        self.path = folder.path / final.name
        self._folder = folder
        self._final = final
        self._data = data
        self._source = source
        self._before = _state(final)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the files that are still under temporary names."""
        self._folder.close()

    def commit(self) -> OutputFiles:
        """Publish the data, then the model; then delete data that only the old model used.

        Tensors of the old model that were not read yet raise ModelError from then on.

        Raises ModelError if the files cannot be put in place; the existing files are not changed
        then.
        """
        if self._folder.closed:
            raise InvariantError("a staged model is committed twice, or after it was closed")
        with contextlib.ExitStack() as self._held:
            files = self._committed()
        self.close()
        return files

    def _committed(self) -> OutputFiles:
        final = self._final
        kept = tuple(final.parent / location for location in self._data.shared)
        nbytes = 0
        try:
            self._hold(final)
            nbytes = sum(path.stat().st_size for path in (self.path, *self._shards))
            owned = Owned(final, self._source)
            own = home(owned, self._shards, self._data.shared)
            first = free_names(final, len(own.names)) if own.replaced else own.names
            left = owned.orphans - {*kept, *(final.parent / n for n in own.names)}
            if final.exists():
                # The existing file may be the only copy, so sync the new one to disk first.
                for path in (self.path, *self._shards):
                    sync(path)
            self._publish(first, frozenset() if own.replaced else own.there)
        except OSError as error:
            raise ModelError(why_not_written(error, final, nbytes)) from error
        names = self._bring_home(first, own.names) if own.replaced else own.names
        # The new model is in place; an old file that cannot be deleted does no harm.
        with contextlib.suppress(OSError):
            if left:
                sync(final.parent)
            for path in left:
                path.unlink()
        shards = tuple(final.parent / name for name in names)
        return OutputFiles(final, shards, sum(p.stat().st_size for p in (final, *shards)), kept)

    def _hold(self, model: Path) -> None:
        """Lock a model against other publishers, whose data they might replace or delete.

        Raises ModelError if another is publishing, or has done so since this one was staged.
        """
        meanwhile = f"{show(self._final)}: another process has written it meanwhile; run again"
        try:
            lock = lock_file(model) if model.is_file() else None
        except BlockingIOError as error:
            raise ModelError(meanwhile) from error
        if lock is not None:
            self._held.callback(os.close, lock)
        if model == self._final and self._data.written and _state(model) != self._before:
            raise ModelError(meanwhile)

    @property
    def _shards(self) -> list[Path]:
        return [self.path.with_name(name) for name in self._data.written]

    def _publish(self, names: Sequence[str], there: Collection[str]) -> None:
        """Put the data under these names, unless it is already there, then the model."""
        final = self._final
        published: list[Path] = []
        try:
            for staged, name in zip(self._shards, names, strict=True):
                if name not in there:
                    place(staged, final.parent / name)
                    published.append(final.parent / name)
            model = self._named(names)
            self._hold(model)
            os.replace(model, final)
        except BaseException:
            for shard in published:
                shard.unlink()
            raise

    def _named(self, names: Sequence[str]) -> Path:
        """Return the staged model, or a copy that differs only in the names of its data files."""
        if tuple(names) == self._data.written:
            return self.path
        renamed = self.path.with_name(f"{self.path.name}.renamed")
        rename_data(self.path, dict(zip(self._data.written, names, strict=True)), renamed)
        shutil.copymode(self.path, renamed)
        sync(renamed)
        return renamed

    def _bring_home(self, first: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Rename published data to the names of the old data; return its final names.

        If the disk is full or another process has replaced the model meanwhile, it stays valid,
        with data under `first`.
        """
        folder, published = self._final.parent, _state(self._final)
        try:
            sync(folder)
            for name in names:
                (folder / name).unlink(missing_ok=True)
            for staged, name in zip(self._shards, first, strict=True):
                shutil.copyfile(folder / name, staged)
                sync(staged)
            model = self._named(names)
            self._hold(model)
            if _state(self._final) != published:
                return first
            for staged, name in zip(self._shards, names, strict=True):
                place(staged, folder / name)
            os.replace(model, self._final)
        except (OSError, ModelError):
            return first
        with contextlib.suppress(OSError):
            sync(folder)
            for name in first:
                (folder / name).unlink()
        return names


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced; None if there is none."""
    if not os.path.lexists(path):
        return None
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def why_not_written(error: OSError, final: Path, needed_bytes: int) -> str:
    """Explain in a sentence why a model could not be written."""
    label = show(final)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(final.parent).free
        return (
            f"{label}: the disk is full: {needed_bytes / 1e6:.1f} MB are needed and "
            f"{free / 1e6:.1f} MB are free; free some space or choose another folder"
        )
    what = error.strerror or str(error)
    about = f" ({show(error.filename)})" if isinstance(error.filename, str) else ""
    return f"{label}: it cannot be written: {what}{about}"
