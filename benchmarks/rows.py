"""Rows of benchmarks/results: what was measured, after the conditions of the measurement."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onnxfold import __version__

__all__ = [
    "RESULTS",
    "Conditions",
    "Row",
    "append",
    "cells",
    "conditions",
    "has",
    "merge",
    "put",
    "read",
    "replace",
    "tell",
    "write",
]

RESULTS = Path(__file__).parent / "results"
_VERSIONS = ("cuda_driver", "onnxruntime", "torch", "triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """When and on what a row was measured; the field order is the column order."""

    date: str
    onnxfold: str
    python: str
    onnx_ir: str
    numpy: str
    cpu: str
    cores: int


def conditions() -> dict[str, Any]:
    """Return the fields of :class:`Conditions` for this machine and moment."""
    return asdict(
        Conditions(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            onnxfold=__version__,
            python=platform.python_version(),
            onnx_ir=version("onnx-ir"),
            numpy=version("numpy"),
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
        )
    )


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Row(SimpleNamespace):
    """The conditions of now, then the columns that are given, in their order."""

    def __init__(self, **columns: Any) -> None:
        super().__init__(**conditions(), **columns)


def tell(rows: Iterable[Any]) -> None:
    """Print the columns of rows that are no conditions: words, and numbers after their names."""
    about = {*(field.name for field in fields(Conditions)), *_VERSIONS}
    for row in rows:
        found = [(name, cell) for name, cell in cells(row).items() if name not in about]
        told = [(name, cell) for name, cell in found if cell is not None and cell != ""]
        print(*(c if isinstance(c, str) else f"{n} {c}" for n, c in told), sep=", ", flush=True)


def cells(row: Any) -> dict[str, Any]:
    """Return the columns of a row, which may also be a mapping or a dataclass."""
    if isinstance(row, SimpleNamespace):
        return dict(vars(row))
    return dict(row) if isinstance(row, Mapping) else asdict(row)


def write(path: Path, rows: Sequence[Any]) -> None:
    """Replace the file by these rows, all of the same columns."""
    made = [cells(row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    _put(path, made, made[0])


def append(path: Path, rows: Sequence[Any]) -> None:
    """Add rows to the file; its columns must equal the rows'."""
    if not path.exists():
        write(path, rows)
        return
    made = [cells(row) for row in rows]
    columns = path.read_text(encoding="utf-8").partition("\n")[0].strip().split(",")
    if columns != list(made[0]):
        raise ValueError(f"{path} has other columns: {', '.join(columns)}")
    _put(path, made, columns, "a")


def replace(path: Path, row: Any, order: Callable[[dict[str, str]], Any]) -> None:
    """Put a row in the place of the one of the same order, and keep the file in that order."""
    new = _as_text(row)
    kept = [old for old in (read(path) if path.exists() else []) if order(old) != order(new)]
    _put(path, sorted([*kept, new], key=order), new)


def put(path: Path, rows: Sequence[Any], keys: Sequence[str]) -> None:
    """Put rows in the place of those with the same ``keys``; the file is whole at every moment."""
    new = [cells(row) for row in rows]
    own = {tuple(str(row[key]) for key in keys) for row in new}
    known = read(path) if path.exists() else []
    kept = [row for row in known if tuple(row[key] for key in keys) not in own]
    whole = path.with_name(f".{path.name}")
    _put(whole, [*kept, *new], new[0])
    whole.replace(path)


def has(path: Path, **wanted: object) -> bool:
    """Whether the file has a row with these values."""
    rows = read(path) if path.exists() else []
    return any(all(row[name] == str(value) for name, value in wanted.items()) for row in rows)


def merge(
    path: Path, rows: Sequence[Any], key: str, names: Collection[str], order: Sequence[str]
) -> None:
    """Put rows in the place of all whose ``key`` is in ``names``, in the ``order`` of the keys."""
    new = [_as_text(row) for row in rows]
    known = read(path) if path.exists() else []
    kept = [old for old in known if old[key] in order and old[key] not in names]
    # Older rows have no number for a column that is new.
    every = sorted([*kept, *new], key=lambda row: order.index(row[key]))
    _put(path, every, (new or every)[0])


def _as_text(row: Any) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in cells(row).items()}


def _put(
    path: Path, rows: Sequence[dict[str, Any]], columns: Collection[str], mode: str = "w"
) -> None:
    with path.open(mode, encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if mode == "w":
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, every field as text."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
