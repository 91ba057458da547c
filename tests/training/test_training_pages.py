"""docs/training.md and docs/exporting.md: each block of Python and sh runs as printed, in order."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
pytest.importorskip(
    "transformers", reason="transformers is missing: make test-training installs it"
)
from onnxfold.cli import application

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = pytest.mark.filterwarnings("default")  # the exporter's, on its own code


def run_page(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run each block of Python by itself, each command by the command line's own entry; count."""
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(folder)
    ran = 0
    for number, (language, block) in enumerate(blocks):
        if language == "python":
            program = folder / f"block{number}.py"
            program.write_text(block, encoding="utf-8")
            runpy.run_path(str(program))
            ran += 1
            continue
        for line in filter(None, block.splitlines()):
            monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
            with pytest.raises(SystemExit) as stopped:
                application.main()
            assert not stopped.value.code, line
            ran += 1
    return ran


def test_the_page_on_training_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_page("training.md", tmp_path, monkeypatch) >= 5
    assert (tmp_path / "small-both" / "model.safetensors").exists()


def test_the_page_on_exporting_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_page("exporting.md", tmp_path, monkeypatch) == 2
    assert capsys.readouterr().out.count("5 of 5 LayerNorms fold") == 2
