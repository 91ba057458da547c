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


def home(final: Path, staged: Sequence[Path], source: Path | None, shared: Collection[str]) -> Home:
    """Where staged data files belong: under the first names that hold nothing of others.

    Nothing is under a name, or the same bytes, or what the model at `final` alone uses.
    """
    owned = _Owned(final, source)
    places = (_at(final, names, staged, owned) for names in _every(final, len(staged)))
    return next(
        place for place in places if place is not None and not set(place.names) & set(shared)
    )


def _at(final: Path, names: Sequence[str], staged: Sequence[Path], owned: "_Owned") -> Home | None:
    """The home that has these names, None where something that must stay has one of them."""
    paths = zip((final.parent / name for name in names), staged, strict=True)
    taken = [(path, new) for path, new in paths if os.path.lexists(path)]
    there = frozenset(path.name for path, new in taken if owned.has_bytes(path, new))
    replaced = frozenset(path.name for path, _ in taken) - there
    if any(final.parent / name not in owned.orphans for name in replaced):
        return None
    return Home(tuple(names), there, replaced)


def orphans(final: Path, source: Path | None) -> frozenset[Path]:
    """The data files that only the model at `final` uses, to be deleted once it is replaced.

    Only plain files beside it under names that are given here, and none that the input or another
    model of the folder uses; a model that cannot be read is taken to use everything.
    """
    used = frozenset() if final.is_symlink() else _of_model(final)  # whose target stays
    others = _of_others(final, source) if used else None
    if others is None:
        return frozenset()
    return frozenset(
        path
        for path in used - others
        if _is_ours(path, final) and stat.S_ISREG(path.lstat().st_mode)
    )


class _Owned:
    """What of a folder belongs to the model at a path, looked up where it is asked for."""

    def __init__(self, final: Path, source: Path | None) -> None:
        self._final, self._source = final, source
        self._known: frozenset[Path] | None = None

    @property
    def orphans(self) -> frozenset[Path]:
        if self._known is None:
            self._known = orphans(self._final, self._source)
        return self._known

    def has_bytes(self, path: Path, new: Path) -> bool:
        """Whether a file has the bytes of a new one, and no other model is known to use it."""
        status = path.lstat()
        # Runtimes refuse data with two hard links.
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not plain or not same_bytes(path, new):
            return False
        if path in _of_model(self._final):
            return True
        others = _of_others(self._final, self._source)
        return others is not None and path not in others


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


def _of_model(final: Path) -> frozenset[Path]:
    """The data files that the model at a path uses; none where there is no model."""
    if not final.is_file() or final.suffix.lower() != ".onnx":
        return frozenset()
    try:
        return references(final)
    except ModelError:
        return frozenset()


def _of_others(final: Path, source: Path | None) -> frozenset[Path] | None:
    """The data files that the other models of a folder, and the input, use; None if unclear."""
    others = {path for path in final.parent.iterdir() if path.suffix.lower() == ".onnx"}
    if source is not None:
        others.add(source)
    used: frozenset[Path] = frozenset()
    try:
        for other in others:
            # A symbolic link will lead to the new model, a hard link stays with the old one.
            if Path(os.path.realpath(other)) != final:
                used |= references(other)
    except ModelError:
        return None
    return used
