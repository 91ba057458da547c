"""References to tensors that stay in files: which are valid, and whether the files are the same."""

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path, PureWindowsPath

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import ModelError, escaped, show
from onnxfold.model_io import tensor_places, wire
from onnxfold.model_io.file_tensor import FileTensor, packed_nbytes, stamp

# Key of `ir.Model.meta`: the files that a model was read from, and their state at that time.
_FILES = "onnxfold.files"
_AHEAD_BYTES = 256 << 20  # about what a disk reads while a model is analyzed
_LFS_POINTER = b"version https://git-lfs"


def model_folders(path: Path) -> tuple[Path, ...]:
    """Return the folders that may contain a model's external data: its own, and its target's.

    Caches keep a model and its data as symbolic links into one folder of blobs; the data is then in
    the folder of the link's target.
    """
    beside_link = Path(os.path.realpath(path.absolute().parent))
    beside_target = Path(os.path.realpath(path)).parent
    return tuple(dict.fromkeys((beside_link, beside_target)))


def resolve(location: str, folders: Sequence[Path], what: str) -> Path:
    """Return the file to which a reference to external data points.

    Raises ModelError if it is absolute, climbs out by "..", leads out of the model's folders by a
    symbolic link, is missing, or is not a regular file.
    """
    shown = show(location)
    if not location or "\0" in location:
        raise ModelError(f"{what} names no external data file")
    if os.path.isabs(location) or PureWindowsPath(location).root:
        raise ModelError(
            f"{what} names the absolute path '{shown}'; external data must lie in the model's "
            "folder, under a relative name"
        )
    if ".." in PureWindowsPath(location).parts:
        raise ModelError(
            f"{what} names '{shown}', which climbs out of the model's folder; move the data there"
        )
    for folder in folders:
        path = folder / location
        if not os.path.lexists(path):
            continue
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(allowed) for allowed in folders):
            raise ModelError(
                f"{what} names '{shown}', a symbolic link that leads out of the model's folder; "
                "copy the data there"
            )
        if not os.path.lexists(real):
            raise ModelError(
                f"{what} has its data in '{shown}', a link to '{show(real)}', which is missing"
            )
        return real
    if not folders:
        remedy = "it was not loaded: onnx.load_external_data_for_model(model, folder) does, or pass"
        raise ModelError(f"{what} has its data in '{shown}', and {remedy} the path of the model")
    raise ModelError(f"{what} has its data in '{shown}', which is missing; put it beside the model")


def attach(model: ir.Model, folders: Sequence[Path], model_file: Path | None, label: str) -> bool:
    """Turn every reference of a model into a `FileTensor`, after checking it against its file.

    Returns whether the model has external data other than in its own file.

    Raises ModelError, which starts with `label`, for a reference that `resolve` refuses, that
    reaches past the end of its file, whose length does not match its type and shape, or that partly
    overlaps another.
    """
    try:
        ranges: dict[Path, list[tuple[int, int, str]]] = {}
        files: dict[str, tuple[Path, os.stat_result]] = {}
        for slot in list(tensor_places.slots(model)):
            link = slot.tensor
            if not isinstance(link, ir.ExternalTensor):
                continue
            what = f"tensor '{link.name}'"
            location = os.fspath(link.location)
            inside = model_file if location == wire.IN_MODEL else None
            if location not in files:
                files[location] = _status(inside or resolve(location, folders, what), what)
            path, status = files[location]
            offset, nbytes = _check_range(link, path, status, what)
            if nbytes == 0:
                slot.put(_empty(link))
                continue
            ranges.setdefault(path, []).append((offset, offset + nbytes, what))
            slot.put(FileTensor(path, status, offset, link, in_model=inside is not None))
        for path, used in ranges.items():
            _check_overlap(path, used)
        model.meta[_FILES] = {os.fspath(path): stamp(status) for path, status in files.values()}
        return bool(files.keys() - {wire.IN_MODEL})
    except ModelError as error:
        raise ModelError(f"{label}: {escaped(str(error))}") from error


def remember(model: ir.Model, path: Path, status: os.stat_result) -> None:
    """Record the state of a file that the model was read from, for `check_unchanged`."""
    model.meta.setdefault(_FILES, {})[os.fspath(path)] = stamp(status)


def read_ahead(model: ir.Model) -> None:
    """Ask the system to read ahead the beginning of the weight files."""
    for path in model.meta.get(_FILES, {}) if hasattr(os, "posix_fadvise") else ():
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # advised where the weights are read
        try:
            os.posix_fadvise(descriptor, 0, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def check_unchanged(model: ir.Model) -> None:
    """Refuse to continue if a file that a model was read from has changed.

    Raises ModelError if it is gone, or has another size, time or inode than when it was loaded.
    """
    for path, known in model.meta.get(_FILES, {}).items():
        try:
            now = stamp(os.stat(path))
        except OSError as error:
            raise ModelError(f"{show(path)}: {error.strerror} (it was there)") from error
        if now != known:
            raise ModelError(f"{show(path)}: the file has changed since it was loaded; run again")


def _empty(link: ir.ExternalTensor) -> ir.Tensor[npt.NDArray[np.generic]]:
    """Return a tensor without elements; files without bytes cannot be mapped."""
    array: npt.NDArray[np.generic] = np.empty(link.shape.numpy(), link.dtype.numpy())
    return ir.Tensor(
        array,
        dtype=link.dtype,
        name=link.name,
        doc_string=link.doc_string,
        metadata_props=dict(link.metadata_props),
    )


def _status(path: Path, what: str) -> tuple[Path, os.stat_result]:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{what} is in '{show(path)}', which is not a regular file")
        with open(path, "rb"):
            return path, status
    except OSError as error:
        raise ModelError(f"{what} is in '{show(path)}': {error.strerror}") from error


def _check_range(
    link: ir.ExternalTensor, path: Path, status: os.stat_result, what: str
) -> tuple[int, int]:
    shape = link.shape.numpy()
    nbytes = packed_nbytes(link.dtype, link.size)
    offset = link.offset or 0
    length = nbytes if link.length is None else link.length
    if length != nbytes:
        raise ModelError(
            f"{what} of shape {list(shape)} and type {link.dtype.name} needs {nbytes} bytes of "
            f"'{show(path.name)}' and has {length}; the model is damaged"
        )
    if offset + length > status.st_size:
        hint = "it is truncated"
        with open(path, "rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                hint = "it is a Git LFS pointer; run git lfs pull"
        raise ModelError(
            f"{what} is in bytes {offset} to {offset + length} of '{show(path.name)}', which has "
            f"{status.st_size}: {hint}"
        )
    return offset, nbytes


def _check_overlap(path: Path, used: Iterable[tuple[int, int, str]]) -> None:
    """Refuse ranges that overlap without enclosing one another: the model is damaged."""
    enclosing: list[tuple[int, str]] = []
    for start, end, what in sorted(used, key=lambda r: (r[0], -r[1])):
        while enclosing and enclosing[-1][0] <= start:
            enclosing.pop()
        if enclosing and end > enclosing[-1][0]:
            raise ModelError(
                f"{what} overlaps {enclosing[-1][1]} in '{show(path.name)}'; "
                "the offsets are damaged"
            )
        enclosing.append((end, what))
