"""docs/verify.md: every command runs as printed, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfold.check.budget import Budget
from onnxfold.options import Metric
from tests.project.test_readme import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
COMMANDS = "".join(blocks("sh", PAGE)).splitlines()


@pytest.mark.campaign
def test_every_command_runs_as_printed(tmp_path: Path) -> None:
    """In one folder, in order: later ones read what earlier ones wrote."""
    pytest.importorskip("onnxruntime.quantization")
    (tmp_path / "models").symlink_to(ROOT / "models")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    printed = []
    for command in COMMANDS:
        words = shlex.split(command)
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        printed.append(" ".join(done.stdout.split()))
    assert len(printed) == 2
    shown = blocks("text", PAGE)[0].splitlines()
    assert " ".join(shown[0].split()) in printed[1]
    assert "within the budget (32 samples against a float64 run" in printed[1]
    assert shown[-1] in printed[1]


def test_the_page_has_the_budgets_of_the_code() -> None:
    rows = re.findall(r"^\| (fp16|bf16|int8|int4) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == ["fp16", "bf16", "int8", "int4"]
    for name, numbers in rows:
        limits = [Budget.default_limit(name, metric) for metric in Metric]
        assert [float(number) for number in numbers.split(" | ")] == limits
