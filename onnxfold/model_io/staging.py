"""A hidden folder for files that are not yet published, gone when it is closed.

A killed process leaves its folder behind. Each live one is locked by its process, and the system
drops the lock with the process, so the next run can tell and removes what is left.
"""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from pathlib import Path

from onnxfold.errors import ModelError
from onnxfold.model_io.messages import show

try:
    import fcntl
except ImportError:  # Windows has no such lock; left folders stay there
    fcntl = None  # type: ignore[assignment]  # the module is optional

# A folder exists for a moment before it is locked.
_MOMENT_S = 60.0


class StagingFolder:
    """A new folder inside another one; what it is called begins with `prefix` and the process.

    Raises OSError where it cannot be created.
    """

    def __init__(self, parent: Path, prefix: str = ".onnxfold-") -> None:
        _remove_left(parent, f"{prefix}*", _MOMENT_S)
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
        self._lock = _locked(self.path)
        self.closed = False

    def close(self) -> None:
        """Delete the folder and what is still in it."""
        self.closed = True
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_left_by(process: int, parent: Path) -> None:
    """Delete the folders that a process, which has ended, had inside another one."""
    _remove_left(parent, f"[.~]onnxfold-{process}-*", 0.0)


def _remove_left(parent: Path, pattern: str, moment_s: float) -> None:
    for folder in parent.glob(pattern):
        # Another process may remove it, or may not be ours to remove: then it just stays.
        with contextlib.suppress(OSError):
            if folder.is_symlink() or time.time() - folder.stat().st_mtime < moment_s:
                continue
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """Descriptor that locks a folder until it is closed; None if another process holds it."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
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
