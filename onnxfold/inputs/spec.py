"""The user's description of inputs: shapes by name, arrays, or files of arrays."""

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.errors import DataError, UsageError
from onnxfold.options import GivenInputs

Array = npt.NDArray[Any]

_NPY = re.compile(r"(?P<name>.+?):(?P<path>(?:[A-Za-z]:[\\/])?[^:]*\.npy)")
_SHAPE = re.compile(r"(?P<name>.+):(?P<dims>\[[\d,\s]*\]|\d+(?:\s*,\s*\d+)*)")
_FORMS = "give name:1,128 or name:[1,128] or name:file.npy, or a file.npz"


@dataclass(frozen=True)
class InputSpec:
    """Shapes and files for inputs by name; inputs that it does not name are drawn.

    A file is a .npy with one array, or a .npz with the array under the input's name.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, given: GivenInputs) -> "InputSpec":
        """Read inputs from Python: texts as :meth:`parse` does, or arrays and shapes by name.

        Raises UsageError for other types, and for what :meth:`parse` refuses.
        """
        if not isinstance(given, Mapping):
            return cls.parse(given)
        shapes: dict[str, tuple[int, ...]] = {}
        arrays: dict[str, Array] = {}
        for name, value in given.items():
            if hasattr(value, "__array__"):
                arrays[name] = np.asarray(value)
            else:
                shapes[name] = _shape(name, value)
        return cls(shapes, arrays=arrays)

    @classmethod
    def parse(cls, texts: str | Iterable[str]) -> "InputSpec":
        """Read command-line values, each `name:1,128`, `name:[1,128]`, `name:x.npy` or `x.npz`.

        A name may contain colons. Raises UsageError for anything else and for a repeated input,
        DataError for a missing file.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        files: dict[str, Path] = {}
        for text in [texts] if isinstance(texts, str) else texts:
            for name, value in _parse_one(text).items():
                if name in shapes or name in files:
                    raise UsageError(f"--inputs gives {name!r} twice")
                if isinstance(value, Path):
                    files[name] = value
                else:
                    shapes[name] = value
        return cls(shapes, files)

    def names(self) -> frozenset[str]:
        return frozenset(self.shapes) | self.names_of_arrays()

    def names_of_arrays(self) -> frozenset[str]:
        return frozenset(self.files) | frozenset(self.arrays)

    def words(self) -> list[str]:
        """Return equivalent values of --inputs; an array must be stored in a file for that."""
        shapes = [f"{name}:{','.join(map(str, shape))}" for name, shape in self.shapes.items()]
        files = [
            str(path) if path.suffix == ".npz" else f"{name}:{path}"
            for name, path in self.files.items()
        ]
        return [*shapes, *dict.fromkeys(files), *(f"{name}:FILE.npy" for name in self.arrays)]

    def load(self, name: str) -> Array:
        """Return the array that is given for an input; raises DataError for an unreadable file."""
        if name in self.arrays:
            return self.arrays[name]
        path = self.files[name]
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as archive:
                    return np.asarray(archive[name])
            return np.asarray(np.load(path, allow_pickle=False))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: it has no array for {name!r}: {error}") from error


def _parse_one(text: str) -> dict[str, tuple[int, ...] | Path]:
    if text.endswith(".npz"):
        path = _existing(Path(text))
        try:
            with np.load(path, allow_pickle=False) as archive:
                return dict.fromkeys(archive.files, path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: it is not a .npz file: {error}") from error
    if (match := _NPY.fullmatch(text)) is not None:
        return {match["name"]: _existing(Path(match["path"]))}
    if (match := _SHAPE.fullmatch(text)) is not None:
        return {match["name"]: tuple(int(d) for d in re.findall(r"\d+", match["dims"]))}
    raise UsageError(f"--inputs {text!r} is not understood: {_FORMS}")


def _shape(name: str, value: object) -> tuple[int, ...]:
    """Return a shape given in Python; raises UsageError for anything else."""
    if isinstance(value, Sequence) and all(
        isinstance(size, int | np.integer) and size >= 0 for size in value
    ):
        return tuple(int(size) for size in value)
    raise UsageError(
        f"inputs[{name!r}] is of type {type(value).__name__}: give an array, or a shape such as "
        "(1, 128)"
    )


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; {_FORMS}")
    return path
