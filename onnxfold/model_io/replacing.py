"""Which files an output may replace: the program's own, and others where the user says so."""

import contextlib
import json
import os
from pathlib import Path

from onnx.serialization import registry

from onnxfold.errors import ModelError, UsageError
from onnxfold.model_io.data_homes import same_bytes
from onnxfold.model_io.load import metadata
from onnxfold.model_io.messages import show

METADATA_KEY = "onnxfold"  # the metadata entry that says of a model that this program wrote it
_COPIED = "user.onnxfold.copy"  # the attribute of a file that says so of a copy, byte for byte


def check_format(destination: str | os.PathLike[str]) -> None:
    """Raise UsageError for a name that onnx or ONNX Runtime takes for another format than ONNX."""
    suffix = os.path.splitext(destination)[1]
    form = registry.get_format_from_file_extension(suffix)
    if suffix.lower() == ".ort" or form not in (None, "protobuf"):
        raise UsageError(
            f"{show(destination)}: OUT is a binary ONNX file, and a name that ends in "
            f"'{show(suffix)}' is read as another format; name it .onnx"
        )


def check_replaceable(
    destination: str | os.PathLike[str], *, source: Path | None, force: bool
) -> None:
    """Raise UsageError where a file is there that this program did not write, without `force`.

    A copy of the input may be replaced too, for that is what is written where nothing changes.
    """
    path = Path(destination)
    if force or not os.path.isfile(path) or not os.stat(path).st_size or is_ours(path):
        return
    if source is not None and os.path.isfile(source) and same_bytes(path, source):
        return
    raise UsageError(
        f"{show(path)}: it exists, and onnxfold did not write it; give another output, or --force "
        "to replace it"
    )


def mark_copy(path: Path) -> None:
    """Note that this program wrote a file, not in its bytes; not every file system can."""
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(path, _COPIED, _stamp(path))


def is_ours(path: Path) -> bool:
    """Whether this program wrote the model at a path, as its metadata or its attribute says."""
    if hasattr(os, "getxattr"):
        with contextlib.suppress(OSError):  # it has no such attribute
            if os.getxattr(path, _COPIED) == _stamp(path):
                return True
    try:
        return "target" in json.loads(metadata(path).get(METADATA_KEY, "{}"))
    except (ModelError, TypeError, ValueError):
        return False


def _stamp(path: Path) -> bytes:
    """What changes where somebody writes into a file."""
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}".encode()
