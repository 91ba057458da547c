"""The page of the papers: every row, command, page and test that its table names exists."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from onnxfold.cli.application import app

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
PAGE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "pages" / "papers.py"))
PARTS: list[dict[str, Any]] = [part for paper in PAGE["parts"]() for part in paper["items"]]
WORDS = {"part", "about", "verdict", "theirs", "ours", "values", "where", "command", "missing"}


def left_of(command: str) -> Iterator[str]:
    """Yield what of a command does not exist."""
    program, *words = shlex.split(command)
    if program == "onnxfold":
        known: Any = typer.main.get_command(app)
        if words[0] not in known.commands:
            yield f"the command {words[0]}"
            return
        options = {name for p in known.commands[words[0]].params for name in p.opts}
        yield from (word for word in words if word.startswith("-") and word not in options)
        return
    assert (program, words[0]) == ("python", "-m"), command
    if words[1] == "pytest":
        path, _, name = words[2].partition("::")
        there = (ROOT / path).exists()
        if not there or (name and f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")):
            yield words[2]
        return
    path = ROOT.joinpath(*words[1].split("."))
    module = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    if not module.exists():
        yield words[1]
        return
    text = module.read_text(encoding="utf-8")
    shared = (ROOT / "benchmarks" / "training" / "together.py").read_text(encoding="utf-8")
    yield from (w for w in words[2:] if w.startswith("-") and f'"{w}"' not in text + shared)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["part"])
def test_what_a_part_names_exists(part: dict[str, Any]) -> None:
    assert part.keys() <= WORDS
    assert part["verdict"] in PAGE["VERDICTS"]
    assert ("missing" in part) == (part["verdict"] == "in part")
    assert (ROOT / part["where"]).exists()
    assert (
        list(left_of(part["command"])) == []
        if "command" in part
        else part["verdict"]
        in (
            "not here",
            "impossible here",
        )
    )
    values = part.get("values", [])
    fields = {int(number) for number in re.findall(r"\{(\d+)\}", part["ours"])}
    assert fields == set(range(len(values)))
    for value in values:
        assert value.keys() <= {"file", "where", "column", "take", "form"}
        assert all(row[value["column"]] for row in PAGE["chosen_rows"](value))


@pytest.mark.parametrize(
    "command",
    [
        "onnxfold fold model.onnx",
        "onnxfold optimize model.onnx --no-such",
        "python -m benchmarks.no_such",
        "python -m benchmarks.training.swin --no-such",
        "python -m pytest tests/no_such.py",
        "python -m pytest tests/project/test_papers.py::test_no_such",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert list(left_of(command))


def test_rows_that_do_not_exist_are_found() -> None:
    with pytest.raises(ValueError, match=r"recipes\.csv has no row"):
        PAGE["chosen_rows"]({"file": "recipes.csv", "where": {"recipe": "no such"}})
