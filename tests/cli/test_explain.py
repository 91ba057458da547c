"""explain: every code that a refusal can have is explained, and others are named as unknown."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from onnxfold.cli.application import app
from onnxfold.errors import UsageError
from onnxfold.refusal import EXPLANATIONS, RefusalCode

_RUNNER = CliRunner()


@pytest.mark.parametrize("code", RefusalCode)
def test_every_code_has_a_meaning_and_a_remedy(code: RefusalCode) -> None:
    result = _RUNNER.invoke(app, ["explain", code.value], env={"COLUMNS": None})
    assert result.exit_code == 0
    assert EXPLANATIONS[code].meaning in result.stdout
    assert EXPLANATIONS[code].remedy in result.stdout


@pytest.mark.parametrize("code", RefusalCode)
def test_no_explanation_has_the_marks_of_a_link(code: RefusalCode) -> None:
    assert "](" not in EXPLANATIONS[code].meaning + EXPLANATIONS[code].remedy


def test_without_a_code_all_are_listed_a_line_each() -> None:
    lines = _RUNNER.invoke(app, ["explain"], env={"COLUMNS": None}).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [code.value for code in RefusalCode]


def test_an_unknown_code_is_bad_usage() -> None:
    result = _RUNNER.invoke(app, ["explain", "nonsense"])
    assert isinstance(result.exception, UsageError)
    assert "'onnxfold explain' lists them all" in str(result.exception)


def test_an_explanation_wraps_between_words() -> None:
    said = _RUNNER.invoke(app, ["explain", "graph_output"], env={"COLUMNS": "40"}).stdout
    assert all(len(line) <= 40 for line in said.splitlines())
    assert EXPLANATIONS[RefusalCode.GRAPH_OUTPUT].remedy in " ".join(said.split())
