"""A hidden folder for files that are not yet published, gone when it is closed.

A killed process leaves its folder where it is. In each lies a marker that names the folder, the
process and its machine, and that the process locks as long as it lives: the system drops the lock
with the process. The next run removes what is marked so and no longer locked, and nothing else.
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
except ImportError:  # Windows has no such lock; left folders stay there
    fcntl = None  # type: ignore[assignment]  # the module is optional

_MARKER = ".onnxfold-staging"


class StagingFolder:
    """A new folder inside another one; what it is called begins with `prefix` and the process.

    Raises OSError where it cannot be created.
    """

    def __init__(self, parent: Path, prefix: str = ".onnxfold-") -> None:
        _remove_left(parent, f"{prefix}*")
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
        self.closed = False
        try:
            self._lock = os.open(self.path / _MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            _lock(self._lock)
            # Until this is written the folder is nobody's, and by then it is locked.
            os.write(self._lock, _mark(self.path, os.getpid()))
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def disown(self) -> None:
        """Have no later run remove the folder: it is to hold what this program did not make."""
        os.unlink(self.path / _MARKER)

    def close(self) -> None:
        """Delete the folder and what is still in it."""
        if not self.closed:
            self.closed = True
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def remove_left_by(process: int, parent: Path) -> None:
    """Delete the folders that a process, which has ended, had inside another one."""
    _remove_left(parent, f"[.~]onnxfold-{process}-*")


def _remove_left(parent: Path, pattern: str) -> None:
    for folder in parent.glob(pattern):
        # Another process may remove it, or may not be ours to remove: then it just stays.
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
    """What the marker of a folder says; a copy of the folder, or one renamed, is another folder."""
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
    """Lock a file until it is closed, and return whether no other process holds it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_file(path: Path) -> int | None:
    """Lock a file until the descriptor is closed; None where the system has no such locks.

    Raises BlockingIOError where another process holds it.
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
    """Give a file its final name, which nothing may have: a rename would replace in silence.

    Raises ModelError where something has it.
    """
    try:
        try:
            os.link(staged, final)
        except OSError as error:
            # The file system has no hard links, or the name is taken.
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
    """Have a file, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
