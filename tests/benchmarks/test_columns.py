"""What the benchmarks write has the columns of the rows that are kept of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rows import RESULTS, Row

_CONDITIONS = list(vars(Row()))
_KEPT = {path.stem: path.read_text().partition("\n")[0] for path in RESULTS.glob("*.csv")}
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


def _matches(columns: list[str], kept: str) -> bool:
    parts = ",".join([*_CONDITIONS, *columns]).split("*")
    return re.fullmatch(".*".join(map(re.escape, parts)), kept) is not None


# The rows of sass have no conditions.
WRITTEN = {
    str(path.relative_to(_BENCHMARKS)): rows
    for path in sorted(_BENCHMARKS.rglob("*.py"))
    if path.stem != "sass" and (rows := _rows(path))
}


@pytest.mark.parametrize("name", WRITTEN)
def test_columns_are_those_of_a_kept_file_that_the_program_names(name: str) -> None:
    text = (_BENCHMARKS / name).read_text()
    named = [
        kept
        for stem, kept in _KEPT.items()
        if re.search(rf"\b{stem}\b|\b_{stem}\b|\"{stem.removeprefix('training_')}\"", text)
    ]
    assert named
    for columns in WRITTEN[name]:
        assert any(_matches(columns, kept) for kept in named), columns


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_no_row_names_a_folder_of_a_search(path: Path) -> None:
    assert "/.onnxfold-" not in path.read_text(encoding="utf-8")
