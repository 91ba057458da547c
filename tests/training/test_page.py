"""docs/training.md: every block of Python and of sh runs as printed, in order."""

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
from onnxfold import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.filterwarnings("default")  # the exporter's, on its own code
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of Python by itself, each command by the command line's own entry."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for number, (language, block) in enumerate(BLOCKS):
        if language == "python":
            program = tmp_path / f"block{number}.py"
            program.write_text(block, encoding="utf-8")
            runpy.run_path(str(program))
            ran += 1
            continue
        for line in filter(None, block.splitlines()):
            monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
            with pytest.raises(SystemExit) as stopped:
                cli.main()
            assert not stopped.value.code, line
            ran += 1
    assert ran >= 5
    assert (tmp_path / "small-both" / "model.safetensors").exists()
