"""A model that is written under temporary names, and how it gets its own.

Publishing is single renames within one file system: the data under a name that nothing has, then
the model. A kill between any two steps leaves the input and the previous output whole, and at
worst a hidden folder or a data file that nothing uses. Data under the name of what it replaces is
published twice: under a name that nothing has, and, once no model needs the old, under its own.
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
    """What was published, and the size of it all.

    shards: its data files; shared: those of the source that it refers to as well.
    """

    model: Path
    shards: tuple[Path, ...]
    nbytes: int
    shared: tuple[Path, ...] = ()

    @property
    def data(self) -> Path | None:
        """The data file, the first of several, None where there is none."""
        return self.shards[0] if self.shards else None


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Names of the data files of a staged model, and locations in files of its source."""

    written: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


class StagedModel:
    """A model written completely, in a hidden folder beside its destination.

    `path` can be loaded as it is: the external data lies beside it under its final name. Leaving
    the context, or `close`, deletes what was not committed.
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
        """Delete what is still under temporary names."""
        self._folder.close()

    def commit(self) -> OutputFiles:
        """Publish the data, then the model; then delete data that only the old model used.

        Tensors of the old model that were not read yet raise ModelError from then on.

        Raises ModelError where the files cannot be put in place; what was there before is
        untouched.
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
                # What is there may be the only copy: have the new one on the disk first.
                for path in (self.path, *self._shards):
                    sync(path)
            self._publish(first, frozenset() if own.replaced else own.there)
        except OSError as error:
            raise ModelError(why_not_written(error, final, nbytes)) from error
        names = self._bring_home(first, own.names) if own.replaced else own.names
        # The new model stands; an old file that cannot be deleted harms nobody.
        with contextlib.suppress(OSError):
            if left:
                sync(final.parent)
            for path in left:
                path.unlink()
        shards = tuple(final.parent / name for name in names)
        return OutputFiles(final, shards, sum(p.stat().st_size for p in (final, *shards)), kept)

    def _hold(self, model: Path) -> None:
        """Keep others from publishing over a model, whose data they might take or delete.

        Raises ModelError where they do just now, or have done since this one was staged.
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
        """Place the data under these names, but where it is there already, then the model."""
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
        """The staged model, or one that differs from it in the names of its data files alone."""
        if tuple(names) == self._data.written:
            return self.path
        renamed = self.path.with_name(f"{self.path.name}.renamed")
        rename_data(self.path, dict(zip(self._data.written, names, strict=True)), renamed)
        shutil.copymode(self.path, renamed)
        sync(renamed)
        return renamed

    def _bring_home(self, first: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Give published data the names that the old data had; returns those that it then has.

        The model stands and is whole, under `first` too, where the disk is full or another process
        has replaced it meanwhile.
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
    """What changes where a file is replaced; None where there is none."""
    if not os.path.lexists(path):
        return None
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def why_not_written(error: OSError, final: Path, needed_bytes: int) -> str:
    """Say in a sentence why a model could not be written."""
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
