"""Rows of results as tables of Markdown, and where they stand in a page."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["ROOT", "Row", "between", "read_rows", "table"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, str]


def read_rows(name: str, folder: Path = RESULTS) -> list[Row]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def between(text: str, begin: str, end: str, table: str) -> str:
    """Replace what is between two marks; ValueError where the page lacks them."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after:
        raise ValueError(f"a page lacks the marks around the table of {begin}")
    return before + begin + table + end + after
