"""A hidden folder for files that are not yet published, deleted when it is closed.

A killed process leaves its folder. Each folder contains a marker that names the folder, the process
and its machine, and that the process locks while it lives: the system releases the lock with the
process. The next run removes only folders with a marker that is not locked.
"""

import contextlib
import errno
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

from onnxfold.errors import ModelError
from onnxfold.model_io.messages import show

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
