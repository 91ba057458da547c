"""What the benchmarks write has the columns of the rows that are kept of them."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rows import RESULTS, Row

_CONDITIONS = list(vars(Row()))
_FILES = {"exhaustive": "tune_exhaustive"}
_BENCHMARKS = RESULTS.parent


def _columns(call: ast.Call) -> Iterator[str]:
    """Yield the columns of a row; "*" for those that a table has."""
    for word in call.keywords:
        inner = word.value
        if word.arg is not None:
            yield word.arg
        elif isinstance(inner, ast.Call) and ast.unparse(inner.func) == "quantiles":
            yield from _columns(inner)
        else:
            yield "*"


def _rows(path: Path) -> list[list[str]]:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return [list(_columns(call)) for call in calls if ast.unparse(call.func) == "Row"]


WRITTEN = {path.stem: rows for path in sorted(_BENCHMARKS.glob("*.py")) if (rows := _rows(path))}


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - {"flips", "sass"}))
def test_columns_are_those_of_the_kept_file(name: str) -> None:
    with (RESULTS / f"{_FILES.get(name, name)}.csv").open(encoding="utf-8") as file:
        kept = next(csv.reader(file))
    for columns in WRITTEN[name]:
        parts = ",".join([*_CONDITIONS, *columns]).split("*")
        text, start = ",".join(kept), 0
        for part in parts:
            start = text.index(part, start) + len(part)
        assert text.startswith(parts[0])
        assert text.endswith(parts[-1])


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_no_row_names_a_folder_of_a_search(path: Path) -> None:
    assert "/.onnxfold-" not in path.read_text(encoding="utf-8")
