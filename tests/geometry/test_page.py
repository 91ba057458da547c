"""docs/geometry.md: every command in a block of sh runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "geometry.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.campaign
def test_every_command_runs_as_printed(tmp_path: Path) -> None:
    """In one folder, in order: later ones read what earlier ones wrote."""
    pytest.importorskip("matplotlib")
    (tmp_path / "models").symlink_to(ROOT / "models")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    for command in COMMANDS:
        words = command.split()
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (words[1] != "measure") or "9 norms over" in done.stdout


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) == 5
