"""Checks of the path to which a model is written."""

import os
from pathlib import Path

from onnx.serialization import registry

from onnxfold.errors import ModelError, UsageError
from onnxfold.model_io.load import references
from onnxfold.model_io.messages import show


def resolved(destination: str | os.PathLike[str]) -> Path:
    """Return the destination with its folder resolved.

    A symbolic link at the path itself is kept. Writing replaces such a link but not its target: in
    a cache of blobs the target is shared, and its name is the hash of its content.
    """
    path = Path(destination).absolute()
    return Path(os.path.realpath(path.parent)) / path.name


def file_to_write(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write; raises ModelError for the name of a directory or device.

    Path loses the evidence, a slash or a dot at the end.
    """
    text = os.fspath(name)
    if "\0" in text:
        raise ModelError(f"{show(text)}: a path has no null byte; choose another output path")
    # os.path returns False for files in a folder that may not be searched, where Path raises.
    if os.path.isdir(text) or os.path.basename(text) in ("", "."):
        raise ModelError(f"{show(text or '.')}: it is a directory; name a file in it")
    folder = Path(os.path.realpath(os.path.dirname(text) or "."))
    if folder == Path("/dev") or folder.parts[1:2] in (
        ("proc",),
        ("sys",),
    ):  # /dev/stdout is a link
        raise ModelError(f"{show(text)}: it is not a regular file; choose another output path")
    return Path(text)


def check_destination(
    destination: str | os.PathLike[str], *, source: Path | None, force: bool
) -> None:
    """Fail before the long work if a model cannot be written to a path.

    An existing file is replaced, unless it is the model being read (`source`) and `force` is not
    set.

    Raises UsageError if the name is one of another format, the path is the source without `force`,
    or it is data that the source uses, and ModelError if the folder is missing or not writable, or
    the path is not a regular file.
    """
    _check_format(destination)
    path = file_to_write(destination)
    label = show(path)
    folder = path.parent
    if not os.path.exists(folder):
        raise ModelError(
            f"{label}: the folder {show(folder)} does not exist; create it first "
            f"(mkdir -p {show(folder)})"
        )
    if not folder.is_dir():
        raise ModelError(f"{label}: {show(folder)} is not a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ModelError(f"{label}: it is not a regular file; choose another output path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ModelError(
            f"{label}: the folder {show(folder)} cannot be written; choose another output folder"
        )
    if _exists(path, label):
        _check_existing(path, label, source, force)


def _exists(path: Path, label: str) -> bool:
    try:
        return path.exists()
    except OSError as error:  # such as a name that is too long
        raise ModelError(f"{label}: {error.strerror}; choose another output path") from error


def _check_existing(path: Path, label: str, source: Path | None, force: bool) -> None:
    if source is None or not source.exists():
        return
    if path.samefile(source):
        if not force:
            raise UsageError(f"{label}: it is the input; choose another output, or --force")
    elif any(os.path.exists(data) and path.samefile(data) for data in references(source)):
        raise UsageError(f"{label}: it contains the weights of the input; choose another output")


def _check_format(destination: str | os.PathLike[str]) -> None:
    """Raise UsageError for a name that onnx or ONNX Runtime would read as another format."""
    suffix = os.path.splitext(destination)[1]
    form = registry.get_format_from_file_extension(suffix)
    if suffix.lower() == ".ort" or form not in (None, "protobuf"):
        raise UsageError(
            f"{show(destination)}: OUT is a binary ONNX file, and a name that ends in "
            f"'{show(suffix)}' is read as another format; name it .onnx"
        )
