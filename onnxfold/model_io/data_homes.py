"""Data files of a model: which tensors each holds, and its name, the same every time.

The names are `<name>.data`, or `<name>-00001-of-00007.data` and so on. If another file must keep
such a name, `<name>.1` replaces `<name>`, and so on.

A model with weights in several data files is written with as many: a changed tensor is written to
the file of the tensor that it is computed from, a new one to the file of the preceding tensor. One
file per tensor (as PyTorch's old exporter writes) is not sharding, and one file is written.
"""

import itertools
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.serialization import registry

from onnxfold.errors import ModelError, UsageError, show
from onnxfold.model_io.file_tensor import FileTensor
from onnxfold.model_io.load import references
from onnxfold.model_io.tensor_places import slots, tensor_protos

_PART_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Home:
    """Names for data files: some already have the right bytes, some are replaced.

    A replaced file belongs only to the model that is replaced.
    """

    names: tuple[str, ...]
    there: frozenset[str]
    replaced: frozenset[str]


def data_names(final: Path, count: int, shared: Collection[str] = ()) -> list[str]:
    """Return the first names for data files of a model, except those shared with its source."""
    return next(names for names in _every(final, count) if not set(names) & set(shared))


def free_names(final: Path, count: int) -> list[str]:
    """Return the first names for data files that are free in the folder."""
    return next(
        names
        for names in _every(final, count)
        if not any(os.path.lexists(final.parent / each) for each in names)
    )


class Owned:
    """The files of a folder that belong to the model at `final`, looked up once, on demand."""

    def __init__(self, final: Path, source: Path | None) -> None:
        self.final, self._source = final, source

    @cached_property
    def orphans(self) -> frozenset[Path]:
        """Return the data files that only this model uses, to be deleted once it is replaced.

        These are plain files in its folder, with names generated here, that neither the input nor
        another model of the folder uses; an unreadable model is assumed to use everything.
        """
        used = frozenset() if self.final.is_symlink() else self._used  # whose target stays
        if not used or self._others is None:
            return frozenset()
        return frozenset(
            path
            for path in used - self._others
            if _is_ours(path, self.final) and stat.S_ISREG(path.lstat().st_mode)
        )

    def has_bytes(self, path: Path, new: Path) -> bool:
        """Whether a file has the bytes of a new one, and no other model is known to use it."""
        status = path.lstat()
        # Runtimes refuse data with two hard links.
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not plain or not same_bytes(path, new):
            return False
        return path in self._used or (self._others is not None and path not in self._others)

    @cached_property
    def _used(self) -> frozenset[Path]:
        """Return the data files that this model uses, or an empty set."""
        if not self.final.is_file() or self.final.suffix.lower() != ".onnx":
            return frozenset()
        try:
            return references(self.final)
        except ModelError:
            return frozenset()

    @cached_property
    def _others(self) -> frozenset[Path] | None:
        """Return files that the other models of the folder and the input use; None if unknown."""
        others = {path for path in self.final.parent.iterdir() if path.suffix.lower() == ".onnx"}
        if self._source is not None:
            others.add(self._source)
        used: frozenset[Path] = frozenset()
        try:
            for other in others:
                # A symbolic link will lead to the new model, a hard link stays with the old one.
                if Path(os.path.realpath(other)) != self.final:
                    used |= references(other)
        except ModelError:
            return None
        return used


def home(owned: Owned, staged: Sequence[Path], shared: Collection[str]) -> Home:
    """Return the names for staged data files: the first that would not overwrite another's data.

    A name is free if no file has it, if its file has the same bytes, or if only the replaced model
    uses the file.
    """
    places = (_at(owned, names, staged) for names in _every(owned.final, len(staged)))
    return next(
        place for place in places if place is not None and not set(place.names) & set(shared)
    )


def _at(owned: Owned, names: Sequence[str], staged: Sequence[Path]) -> Home | None:
    """Return the home with these names, or None if one of the files must stay."""
    folder = owned.final.parent
    paths = zip((folder / name for name in names), staged, strict=True)
    taken = [(path, new) for path, new in paths if os.path.lexists(path)]
    there = frozenset(path.name for path, new in taken if owned.has_bytes(path, new))
    replaced = frozenset(path.name for path, _ in taken) - there
    if any(folder / name not in owned.orphans for name in replaced):
        return None
    return Home(tuple(names), there, replaced)


def same_bytes(a: Path, b: Path) -> bool:
    """Whether two files have the same content."""
    if a.stat().st_size != b.stat().st_size:
        return False
    with a.open("rb") as first, b.open("rb") as second:
        while part := first.read(_PART_BYTES):
            if part != second.read(_PART_BYTES):
                return False
    return True


def rename_data(model: Path, names: dict[str, str], renamed: Path) -> None:
    """Write a model again, with other names for its data files."""
    proto = onnx.load_model(model, format="protobuf", load_external_data=False)
    for tensor in tensor_protos(proto):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value in names:
                entry.value = names[entry.value]
    renamed.write_bytes(proto.SerializeToString())


def _every(final: Path, count: int) -> Iterator[list[str]]:
    # A reference is text, but a file name need not be.
    name = final.name.encode("utf-8", "replace").decode("utf-8")
    parts = range(1, count + 1)
    numbers = [f"-{part:05}-of-{count:05}" for part in parts] if count > 1 else [""] * count
    starts = itertools.chain([name], (f"{name}.{again}" for again in itertools.count(1)))
    return ([f"{start}{number}.data" for number in numbers] for start in starts)


def _is_ours(path: Path, final: Path) -> bool:
    name = final.name.encode("utf-8", "replace").decode("utf-8")
    numbered = re.escape(name) + r"(\.\d+)?(-\d{5,}-of-\d{5,})?\.data"
    return path.parent == final.parent and re.fullmatch(numbered, path.name) is not None


def is_outside(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is in a data file, not in memory and not in the file of its model."""
    if isinstance(tensor, FileTensor):
        return not tensor.in_model
    return isinstance(tensor, ir.ExternalTensor)


def shard_numbers(tensors: Sequence[ir.TensorProtocol]) -> list[int]:
    """Return the number of the data file of each tensor, counted from 0."""
    homes = [_home(tensor) for tensor in tensors]
    order = {home: number for number, home in enumerate(dict.fromkeys(h for h in homes if h))}
    if len(order) == sum(home is not None for home in homes):
        return [0] * len(tensors)
    numbers, last = [], 0
    for home in homes:
        last = last if home is None else order[home]
        numbers.append(last)
    return numbers


def _home(tensor: ir.TensorProtocol) -> str | None:
    """Return the data file of a tensor, or of the one that it is computed from."""
    base: ir.TensorProtocol | None = tensor
    while base is not None and not isinstance(base, ir.ExternalTensor):
        base = getattr(base, "base", None)
    return os.fspath(base.path) if base is not None and is_outside(base) else None


def check_sharing(
    model: ir.Model, source: Path | None, destination: str | os.PathLike[str]
) -> None:
    """Refuse to write a model that shares the data files of its source if it cannot.

    Raises UsageError if the model does not come from a file, keeps all weights in itself, or its
    data is not in the folder of the destination.
    """
    label = show(Path(destination))
    if source is None:
        raise UsageError(f"{label}: only a model that is read from a file can share its weights")
    homes = (_home(slot.tensor) for slot in slots(model))
    files = {home for home in homes if home is not None}
    if not files:
        raise UsageError(
            f"{label}: {show(source)} has no data files, so there are no weights to share"
        )
    folder = resolved(destination).parent
    for file in sorted(files):
        if not Path(file).is_relative_to(folder):
            raise UsageError(
                f"{label}: it can share weights only from the folder of the input's data, "
                f"{show(Path(file).parent)}; write it there, or without --share-weights"
            )


def shared(tensor: ir.TensorProtocol, folder: Path) -> str | None:
    """Return the location by which a model in a folder can refer to a tensor in place, or None.

    A name that is not valid text, as a reference must be, gives None too.
    """
    if not isinstance(tensor, FileTensor) or tensor.in_model:
        return None
    path = Path(tensor.path)
    if not path.is_relative_to(folder) or not os.fspath(path).isprintable():
        return None
    return path.relative_to(folder).as_posix()


def link_shared(tensors: Mapping[str, ir.TensorProtocol], folder: Path, staging: Path) -> None:
    """Give shared data files a second name in a staging folder, so that its model can be loaded.

    `tensors`: one tensor for each location.

    Raises ModelError if the file system does not support hard links, or a file has changed since it
    was loaded.
    """
    for location, tensor in tensors.items():
        place = staging / location
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / location, place)
        except OSError as error:
            raise ModelError(
                f"{show(folder / location)}: it cannot be linked, which sharing weights needs "
                f"({error.strerror}); write the model without --share-weights"
            ) from error
        if isinstance(tensor, FileTensor):
            with open(place, "rb") as file:
                tensor.check_unchanged(file.fileno())


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
