"""Options from a file of the working folder: which is read, what wins, what it may not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfold.fleet import optimized_apart
from tests.builders import pre_norm_model
from tests.cli.command import Cli, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(pre_norm_model(), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[dict[str, Any], str]:
    """The options that a dry run was given, and what it said of a file."""
    assert run(monkeypatch, *words, "--json") == 0
    captured = capsys.readouterr()
    options: dict[str, Any] = json.loads(captured.out)["run"]["options"]
    return options, captured.err


_DRY = ("optimize", "m.onnx", "--dry-run")


@pytest.mark.parametrize(
    ("name", "table"), [("onnxfold.toml", "optimize"), ("pyproject.toml", "tool.onnxfold.optimize")]
)
def test_a_table_gives_options_and_the_command_line_wins(
    folder: Path,
    name: str,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [
        f"[{table}]",
        'fold = "always"',
        "no-check = true",
        "allow-split = 5",
        "inputs = ['ids:1,8']",
    ]
    (folder / name).write_text("\n".join(lines))
    options, said = planned(monkeypatch, capsys, *_DRY)
    assert options | {"dry_run": "True"} == options
    assert (options["fold"], options["no_check"]) == ("always", "True")
    assert (options["allow_split"], options["inputs"]) == ("5", "ids:1,8")
    assert said.startswith(f"options from {name}")
    assert said.strip().endswith(": fold, no-check, allow-split, inputs")
    assert len(said.splitlines()) == 1
    options, _ = planned(monkeypatch, capsys, *_DRY, "--fold", "auto", "--inputs", "ids:2,8")
    assert (options.get("fold"), options["inputs"]) == (None, "ids:2,8")
    options, _ = planned(monkeypatch, capsys, *_DRY, "--check", "3")  # and not --no-check
    assert (options["check"], options.get("no_check")) == ("3", None)
    options, said = planned(monkeypatch, capsys, "--no-config", *_DRY)
    assert (options.get("fold"), said) == (None, "")
    assert planned(monkeypatch, capsys, "-q", *_DRY)[1] == ""


def test_a_file_of_its_own_is_read_rather_than_the_projects(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text("[project]\nname = 'p'\n[tool.other]\nx = 1\n")
    assert planned(monkeypatch, capsys, *_DRY)[1] == ""
    (folder / "pyproject.toml").write_text("[tool.onnxfold.optimize]\nseed = 1\n")
    (folder / "onnxfold.toml").write_text("[optimize]\nseed = 2\n")
    options, said = planned(monkeypatch, capsys, *_DRY)
    assert options["seed"] == "2"
    assert said == "options from onnxfold.toml: seed\n"


def test_tables_of_other_commands_say_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cli: Cli
) -> None:
    (folder / "onnxfold.toml").write_text("[tune]\nkernels = false\n[bench]\nrounds = 2\n")
    assert planned(monkeypatch, capsys, *_DRY)[1] == ""
    assert cli("bench", "m.onnx", "--json") == 0
    assert json.loads(cli.readouterr().out)["rounds"] == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[optimise]\n", "there is no command 'optimise'; did you mean 'optimize'?"),
        ("[optimize]\ntargt = 'ort'\n", "[optimize] has no option 'targt'; did you mean 'target'?"),
        ("[optimize]\nno_check = true\n", "no option 'no_check'; did you mean 'no-check'?"),
        ("[optimize]\nverbose = true\n", "has no option 'verbose'"),
        ("[optimize]\npaths = 'm.onnx'\n", "has no option 'paths'"),
        ("target = 'ort'\n", "there is no command 'target'"),
        ("optimize = 3\n", "'optimize' is a table of options, [optimize]"),
        ("[optimize]\nno-check = 1\n", "no-check takes true or false, not 1"),
        ("[optimize]\ntarget = true\n", "target takes a value, not true"),
        ("[optimize]\ntarget = ['ort', 'onnx']\n", "target takes one value, not 2"),
        ("[optimize]\ninputs = [[1]]\n", "inputs takes strings or numbers"),
        ("[optimize]\ntarget = 'ort\n", "it is not TOML: "),
        ("[optimize]\ntarget = 'quick'\n", "there is no target 'quick'; there are onnx, ort"),
    ],
)
def test_what_a_file_may_not_hold_is_one_line_and_bad_usage(
    folder: Path, text: str, sentence: str, cli: Cli
) -> None:
    (folder / "onnxfold.toml").write_text(text)
    assert cli(*_DRY) == 2
    captured = cli.readouterr()
    errors = [line for line in captured.err.splitlines() if not line.startswith("options from")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert captured.out == ""
    assert cli("optimize", "--help") == 0
    assert cli("--no-config", *_DRY) == 0


def test_a_command_of_our_own_reads_no_file(folder: Path) -> None:
    """A server, and a command on many models, have their options already."""
    (folder / "onnxfold.toml").write_text("[optimize]\ndry-run = true\n")
    report, warnings = optimized_apart(Path("m.onnx"), Path("o.onnx"), ("--no-check",))
    assert (folder / "o.onnx").exists()
    assert report["run"]["options"] == {"no_check": "True"}
    assert warnings == []


def test_options_of_a_file_reach_every_one_of_many_models(folder: Path, cli: Cli) -> None:
    (folder / "onnxfold.toml").write_text("[optimize]\nfold = 'always'\nno-check = true\n")
    assert cli("optimize", "m.onnx", "--output-dir", "out", "--json") == 0
    (row,) = json.loads(cli.readouterr().out)["models"]
    assert row["report"]["run"]["options"] == {"fold": "always", "no_check": "True"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(
    folder: Path, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "onnxfold.toml").write_text("[nonsense]\n")  # not read while a shell completes
    monkeypatch.setenv("_ONNXFOLD_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "onnxfold optimize --outp")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "onnxfold optimize --outp")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run(monkeypatch) == 0
    assert "--output-dir" in capsys.readouterr().out
