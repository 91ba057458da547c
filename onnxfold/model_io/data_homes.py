"""Names of a model's data files in its folder, the same every time it is written.

The names are `<name>.data`, or `<name>-00001-of-00007.data` and so on. If another file must keep
such a name, `<name>.1` replaces `<name>`, and so on.
"""

import itertools
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from onnxfold.errors import ModelError
from onnxfold.model_io.load import references
from onnxfold.model_io.tensor_places import tensor_protos

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
