"""Files that are not yet published: a hidden folder, and the renames that publish a model.

A killed process leaves its folder. Each folder contains a marker that names the folder, the process
and its machine, and that the process locks while it lives: the system releases the lock with the
process. The next run removes only folders with a marker that is not locked.

Each step of publishing is one rename within a file system: first the data, under an unused name,
then the model. A kill between any two steps leaves the input and the previous output whole, and at
worst a hidden folder or a data file that nothing uses. Data with the name of what it replaces is
published twice: under an unused name, and, once no model needs the old data, under its own.
"""

import contextlib
import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onnxfold.errors import InvariantError, ModelError, show
from onnxfold.model_io.data_homes import Owned, free_names, home, rename_data

try:
    import fcntl
except ImportError:  # Windows lacks this lock; leftover folders stay there
    fcntl = None  # type: ignore[assignment]  # the module is optional

_MARKER = ".onnxfold-staging"


class StagingFolder:
    """A new folder inside another one; its name begins with `prefix` and the process.

    Raises OSError if it cannot be created.
    """

    def __init__(self, parent: Path, prefix: str = ".onnxfold-") -> None:
        _remove_left(parent, f"{prefix}*")
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
        self.closed = False
        try:
            self._lock = os.open(self.path / _MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            _lock(self._lock)
            # Until this is written the folder has no owner; from then on it is locked.
            os.write(self._lock, _mark(self.path, os.getpid()))
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def disown(self) -> None:
        """Exempt the folder from removal by later runs, because it will contain files of others."""
        os.unlink(self.path / _MARKER)

    def close(self) -> None:
        """Delete the folder with its content."""
        if not self.closed:
            self.closed = True
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def remove_left_by(process: int, parent: Path) -> None:
    """Delete the folders that an ended process left inside another one."""
    _remove_left(parent, f"[.~]onnxfold-{process}-*")


def _remove_left(parent: Path, pattern: str) -> None:
    for folder in parent.glob(pattern):
        # Another process may remove it, or it may belong to another user: then it stays.
        with contextlib.suppress(OSError):
            if fcntl is None or folder.is_symlink() or not folder.is_dir():
                continue
            marker = os.open(folder / _MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(marker) and _is_left(folder, os.read(marker, 4096)):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(marker)


def _mark(folder: Path, process: int) -> bytes:
    """Return the marker of a folder; a copied or renamed folder does not match it."""
    status = folder.stat()
    said = {
        "folder": folder.name,
        "device": status.st_dev,
        "inode": status.st_ino,
        "host": socket.gethostname(),
        "process": process,
    }
    return json.dumps(said).encode()


def _is_left(folder: Path, marker: bytes) -> bool:
    process = folder.name.partition("onnxfold-")[2].partition("-")[0]
    return process.isdecimal() and marker == _mark(folder, int(process))


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed, and return whether the lock was free."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_file(path: Path) -> int | None:
    """Lock a file until the descriptor is closed; None if the system lacks such locks.

    Raises BlockingIOError if another process has the lock.
    """
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise
        return None  # a file system without locks
    return descriptor


def place(staged: Path, final: Path) -> None:
    """Give a file its final name, which must be free: a rename would replace silently.

    Raises ModelError if it is not.
    """
    try:
        try:
            os.link(staged, final)
        except OSError as error:
            # The file system lacks hard links, or the name exists.
            if error.errno == errno.EEXIST or os.path.lexists(final):
                raise FileExistsError(errno.EEXIST, "File exists") from error
            os.rename(staged, final)
        else:
            # Runtimes refuse data with two hard links; no model names it yet.
            os.unlink(staged)
    except FileExistsError as error:
        raise ModelError(
            f"{show(final)}: another process has written it meanwhile; run again"
        ) from error


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
