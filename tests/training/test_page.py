"""docs/training.md: every block of Python and of sh runs as printed, in order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
pytest.importorskip(
    "transformers", reason="transformers is missing: make test-training installs it"
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_runs_as_printed(tmp_path: Path) -> None:
    ran = 0
    for language, block in BLOCKS:
        commands = [[sys.executable, "-c", block]]
        if language == "sh":
            lines = (shlex.split(line, comments=True) for line in block.splitlines())
            commands = [[sys.executable, "-m", *words] for words in lines if words]
        for command in commands:
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            ran += 1
    assert ran >= 5
    assert (tmp_path / "small-both" / "model.safetensors").exists()
