"""Which files an output may replace: the program's own, and others if the user allows it."""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from onnxfold.errors import ModelError, UsageError
from onnxfold.model_io.data_homes import same_bytes
from onnxfold.model_io.load import metadata
from onnxfold.model_io.messages import show
from onnxfold.model_io.report_files import is_report
from onnxfold.options import METADATA_KEY

_TUNED = f"{METADATA_KEY}.tune"  # the note of a search
_OF_OTHERS = (
    "{}: it exists, and onnxfold did not write it; give another output, or --force to replace it"
)
_COPIED = "user.onnxfold.copy"  # the file attribute of byte-for-byte copies that this program wrote


def check_replaceable(
    destination: str | os.PathLike[str], *, source: Path | None, force: bool
) -> None:
    """Raise UsageError for an existing file that this program did not write, without `force`.

    A copy of the input may be replaced too, because that is written when nothing changes.
    """
    path = Path(destination)
    if force or not os.path.isfile(path) or not os.stat(path).st_size or is_ours(path):
        return
    if source is not None and os.path.isfile(source) and same_bytes(path, source):
        return
    raise UsageError(_OF_OTHERS.format(show(path)))


def check_reports_replaceable(reports: Iterable[Path], *, force: bool) -> None:
    """Raise UsageError for the first existing report or figure of others, without `force`."""
    for path in reports:
        if not (force or not os.path.isfile(path) or not os.stat(path).st_size or is_report(path)):
            raise UsageError(_OF_OTHERS.format(show(path)))


def mark_copy(path: Path) -> None:
    """Record outside its bytes that this program wrote a file; not all file systems can."""
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(path, _COPIED, _stamp(path))


def is_ours(path: Path) -> bool:
    """Whether this program wrote the model at a path, by its metadata or its file attribute."""
    if hasattr(os, "getxattr"):
        with contextlib.suppress(OSError):  # without the attribute
            if os.getxattr(path, _COPIED) == _stamp(path):
                return True
    try:
        noted = metadata(path)
        return _TUNED in noted or "target" in json.loads(noted.get(METADATA_KEY, "{}"))
    except (ModelError, TypeError, ValueError):
        return False


def _stamp(path: Path) -> bytes:
    """Return what changes when somebody writes to a file."""
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}".encode()
