"""What README and the page of five minutes show is what happens.

Every command of README runs in test_newcomer.py, from the wheel in a fresh environment.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIVE_MINUTES = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the shipped model in its place, in which the commands may write."""
    directory = tmp_path_factory.mktemp("readme")
    (directory / "models").symlink_to(ROOT / "models")
    return directory


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(words: list[str], directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # pytest-xdist sets COLUMNS in its workers; a reader's shell exports none.
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    done = subprocess.run(
        words,
        cwd=directory,
        env=environment | {"PATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exactly_two_commands_set_everything_up() -> None:
    section = README.partition("## Set up for development\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block.split("\n") == ["make demo", "make test", ""]


@pytest.mark.campaign
def test_five_minutes_run_as_printed(clone: Path) -> None:
    commands = [line for block in blocks("sh", FIVE_MINUTES) for line in block.splitlines()]
    assert commands
    for command in commands:
        assert run(command.split(), clone), command


def test_the_printed_output_is_what_the_command_prints(clone: Path) -> None:
    shown = re.findall(r"<!-- output of: (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)
    assert shown
    for command, text in shown:
        printed = run(command.split(), clone)
        assert [line.rstrip() for line in printed.splitlines()] == text.splitlines()


def test_every_figure_of_the_tables_names_its_rows() -> None:
    named = re.findall(r"`(benchmarks/results/[\w.]+)`", README)
    assert named
    assert all((ROOT / name).exists() for name in named)


def span(file: str, method: str, **wanted: str) -> str:
    """The least and the largest speed over the original, as sentences tell them."""
    with (ROOT / "benchmarks" / "results" / file).open() as rows:
        speeds = [
            float(row["to_stock"])
            for row in csv.DictReader(rows)
            if row["method"] == method and all(re.match(v, row[k]) for k, v in wanted.items())
        ]
    return f"{min(speeds):.2f} to {max(speeds):.2f}"


def test_what_it_costs_is_what_the_last_rows_say() -> None:
    with (ROOT / "benchmarks" / "results" / "fold.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "gpt2"]
    last = {row["what"]: float(row["median"]) for row in rows}
    assert (
        f"GPT-2 takes {last['optimize, checked']:.1f} s to optimize, "
        f"{last['optimize --no-check']:.1f} s without the proof and the check"
    ) in README
