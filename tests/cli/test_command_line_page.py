"""docs/command_line.md: its command runs as printed, and its file holds options that there are."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import onnx
import pytest

from tests.builders import pre_norm_model
from tests.cli.command import Cli
from tests.project.test_readme import blocks

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")

_MODELS = ("models/digits_vit/digits_vit.onnx", "tests/recipes/dinov2-small.onnx")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the command finds in a clone."""
    for name in _MODELS:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(_ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    return tmp_path


@pytest.mark.campaign
def test_the_command_runs_as_printed(folder: Path, cli: Cli) -> None:
    ((command,),) = (block.splitlines() for block in blocks("sh", _PAGE))
    assert cli(*shlex.split(command)[1:]) == 0
    lines = [line.rstrip() for line in cli.readouterr().out.splitlines()]
    shown = blocks("text", _PAGE)[0].splitlines()
    assert lines[2:] == shown[2:]
    # Whichever is done first.
    assert {line[len("1 of 2: ") :] for line in lines[:2]} == {
        line[len("1 of 2: ") :] for line in shown[:2]
    }
    assert (folder / "folded" / "dinov2-small.onnx").exists()


def test_the_file_holds_options_that_there_are(folder: Path, cli: Cli) -> None:
    (text,) = blocks("toml", _PAGE)
    (folder / "onnxfold.toml").write_text(text.replace('"mask:1,128"', "").replace('", ]', '"]'))
    onnx.save(pre_norm_model(), folder / "m.onnx")
    words = ("optimize", "m.onnx", "--dry-run")
    assert cli(*words) == 0
    assert cli.readouterr().err == "options from onnxfold.toml: target, inputs, no-check\n"
