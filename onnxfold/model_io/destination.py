"""Where a model may be written, and the names beside it."""

import itertools
import os
import stat
from pathlib import Path

from onnxfold.errors import ModelError, UsageError
from onnxfold.model_io.load import references
from onnxfold.model_io.messages import show


def resolved(destination: str | os.PathLike[str]) -> Path:
    """The destination with its folder resolved; a symbolic link at the path itself is kept.

    Writing replaces such a link and leaves its target alone: in a cache of blobs the target is
    shared, and its name is the hash of what it holds.
    """
    path = Path(destination).absolute()
    return Path(os.path.realpath(path.parent)) / path.name


def file_to_write(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write; raises ModelError for the name of a directory or device.

    A Path keeps nothing of what tells it, a slash or a dot at the end.
    """
    text = os.fspath(name)
    # os.path says no of what stands in a folder that may not be searched, where Path raises.
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
    """Fail before the long work if a model could not be written to a path.

    An existing file is replaced, unless it is the model being read (`source`) and not `force`.

    Raises UsageError where the path is the source without `force`, or is data that the source uses;
    ModelError where the folder is missing or cannot be written, or the path is not a regular file.
    """
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
            raise UsageError(f"{label}: it is the input; give another output, or --force")
    elif any(os.path.exists(data) and path.samefile(data) for data in references(source)):
        raise UsageError(f"{label}: it holds the weights of the input; give another output")


def default_data_name(destination: str | os.PathLike[str]) -> str:
    """Name of the data file of a model, as `data_names` chooses it."""
    return data_names(resolved(destination), 1)[0]


def data_names(final: Path, count: int) -> list[str]:
    """Names for data files of a model: `<name>.data`, or `<name>-00001-of-00007.data` and so on.

    Where one of them is taken, `<name>.1` stands in the place of `<name>`, and so on: nothing in
    the folder has them, not the input, not the model that is replaced (which stays whole until the
    new one is in place), not a model that was renamed.
    """
    # A reference is text, and a name on disk need not be.
    name = final.name.encode("utf-8", "replace").decode("utf-8")
    numbers = [f"-{part:05}-of-{count:05}" for part in range(1, count + 1)] if count > 1 else [""]
    starts = itertools.chain([name], (f"{name}.{again}" for again in itertools.count(1)))
    every = ([f"{start}{number}.data" for number in numbers] for start in starts)
    return next(
        names for names in every if not any(os.path.lexists(final.parent / each) for each in names)
    )


def orphans(final: Path, source: Path | None) -> tuple[Path, ...]:
    """The data files that only the model at `final` uses, to be deleted once it is replaced.

    Only plain files beside it, and none that the input or another model of the folder uses; a
    model that cannot be read is taken to use everything.
    """
    if not final.is_file() or final.suffix.lower() != ".onnx":
        return ()
    try:
        used = {path for path in references(final) if path.parent == final.parent}
        if not used:
            return ()
        others = {path for path in final.parent.iterdir() if path.suffix.lower() == ".onnx"}
        if source is not None:
            others.add(source)
        for other in others:
            # A symbolic link will lead to the new model, a hard link stays with the old one.
            if Path(os.path.realpath(other)) != final:
                used -= references(other)
    except ModelError:
        return ()
    return tuple(sorted(path for path in used if stat.S_ISREG(path.lstat().st_mode)))
