"""The names of a model's data files in its folder, which are the same every time it is written.

The names are `<name>.data`, or `<name>-00001-of-00007.data` and so on. Where something that must
stay has one of them, `<name>.1` stands in the place of `<name>`, and so on.
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
    """Names for data files: some have the bytes already, some hold what is to be replaced.

    What is replaced belongs to the model that is replaced, and to no other.
    """

    names: tuple[str, ...]
    there: frozenset[str]
    replaced: frozenset[str]


def data_names(final: Path, count: int, shared: Collection[str] = ()) -> list[str]:
    """The first names for data files of a model but for those that it shares with its source."""
    return next(names for names in _every(final, count) if not set(names) & set(shared))


def free_names(final: Path, count: int) -> list[str]:
    """The first names for data files that nothing in the folder has."""
    return next(
        names
        for names in _every(final, count)
        if not any(os.path.lexists(final.parent / each) for each in names)
    )


class Owned:
    """What of a folder belongs to the model at `final`, looked up once, where it is asked for."""

    def __init__(self, final: Path, source: Path | None) -> None:
        self.final, self._source = final, source

    @cached_property
    def orphans(self) -> frozenset[Path]:
        """The data files that only this model uses, to be deleted once it is replaced.

        Only plain files beside it under names that are given here, and none that the input or
        another model of the folder uses; a model that cannot be read is taken to use everything.
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
        """The data files that this model uses; none where there is no model."""
        if not self.final.is_file() or self.final.suffix.lower() != ".onnx":
            return frozenset()
        try:
            return references(self.final)
        except ModelError:
            return frozenset()

    @cached_property
    def _others(self) -> frozenset[Path] | None:
        """Those that the other models of the folder, and the input, use; None if unclear."""
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
    """Where staged data files belong: under the first names that hold nothing of others.

    Nothing is under a name, or the same bytes, or what the model that is replaced alone uses.
    """
    places = (_at(owned, names, staged) for names in _every(owned.final, len(staged)))
    return next(
        place for place in places if place is not None and not set(place.names) & set(shared)
    )


def _at(owned: Owned, names: Sequence[str], staged: Sequence[Path]) -> Home | None:
    """The home that has these names, None where something that must stay has one of them."""
    folder = owned.final.parent
    paths = zip((folder / name for name in names), staged, strict=True)
    taken = [(path, new) for path, new in paths if os.path.lexists(path)]
    there = frozenset(path.name for path, new in taken if owned.has_bytes(path, new))
    replaced = frozenset(path.name for path, _ in taken) - there
    if any(folder / name not in owned.orphans for name in replaced):
        return None
    return Home(tuple(names), there, replaced)


def same_bytes(a: Path, b: Path) -> bool:
    """Whether two files hold the same."""
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
    # A reference is text, and a name on disk need not be.
    name = final.name.encode("utf-8", "replace").decode("utf-8")
    parts = range(1, count + 1)
    numbers = [f"-{part:05}-of-{count:05}" for part in parts] if count > 1 else [""] * count
    starts = itertools.chain([name], (f"{name}.{again}" for again in itertools.count(1)))
    return ([f"{start}{number}.data" for number in numbers] for start in starts)


def _is_ours(path: Path, final: Path) -> bool:
    name = final.name.encode("utf-8", "replace").decode("utf-8")
    numbered = re.escape(name) + r"(\.\d+)?(-\d{5,}-of-\d{5,})?\.data"
    return path.parent == final.parent and re.fullmatch(numbered, path.name) is not None
