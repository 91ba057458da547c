"""Rows of benchmarks/results: the conditions of a measurement, and CSV files of dataclasses."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onnxfold import __version__

__all__ = [
    "RESULTS",
    "Conditions",
    "append",
    "conditions",
    "has",
    "merge",
    "put",
    "read",
    "replace",
    "write",
]

RESULTS = Path(__file__).parent / "results"


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


def write(path: Path, rows: Sequence[Any]) -> None:
    """Replace the file by these rows, dataclasses of one type."""
    _put(path, rows, "w", header=True)


def append(path: Path, rows: Sequence[Any]) -> None:
    """Add rows to the file; its columns must equal the rows'."""
    known = path.exists()
    if known:
        columns = path.read_text(encoding="utf-8").partition("\n")[0].strip().split(",")
        if columns != [field.name for field in fields(rows[0])]:
            raise ValueError(f"{path} has other columns than {type(rows[0]).__name__}")
    _put(path, rows, "a", header=not known)


def replace(path: Path, row: Any, order: Callable[[dict[str, str]], Any]) -> None:
    """Put a row in the place of the one of the same order, and keep the file in that order."""
    new = {name: str(value) for name, value in asdict(row).items()}
    kept = [old for old in (read(path) if path.exists() else []) if order(old) != order(new)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(new), lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, new], key=order))


def put(path: Path, rows: Sequence[Any], keys: Sequence[str]) -> None:
    """Put rows in the place of those with the same ``keys``; the file is whole at every moment."""
    new = [asdict(row) for row in rows]
    own = {tuple(str(row[key]) for key in keys) for row in new}
    known = read(path) if path.exists() else []
    kept = [row for row in known if tuple(row[key] for key in keys) not in own]
    whole = path.with_name(f".{path.name}")
    with whole.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(new[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *new])
    whole.replace(path)


def has(path: Path, **wanted: object) -> bool:
    """Whether the file has a row with these values."""
    rows = read(path) if path.exists() else []
    return any(all(row[name] == str(value) for name, value in wanted.items()) for row in rows)


def merge(
    path: Path, rows: Sequence[Any], key: str, names: Collection[str], order: Sequence[str]
) -> None:
    """Put rows in the place of all whose ``key`` is in ``names``, in the ``order`` of the keys."""
    new = [{name: str(value) for name, value in asdict(row).items()} for row in rows]
    known = read(path) if path.exists() else []
    kept = [old for old in known if old[key] in order and old[key] not in names]
    both = sorted([*kept, *new], key=lambda row: order.index(row[key]))
    with path.open("w", encoding="utf-8", newline="") as file:
        names = list(new[0])  # older rows have no number for a column that is new
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(both)


def _put(path: Path, rows: Iterable[Any], mode: str, *, header: bool) -> None:
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8", newline="") as file:
        columns = [field.name for field in fields(rows[0])]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, every field as text."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
