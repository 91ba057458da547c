"""Packages that one slow test needs, in a folder of their own, and programs that see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["installed", "pip", "run"]


def pip(*words: str | Path) -> None:
    """Run pip; skip the test where a package cannot be had."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"pip {words[0]} {words[-1]} failed: {done.stderr.strip().splitlines()[-1]}")


def installed(folder: Path, *names: str) -> Path:
    """Install packages alone: what they import besides is installed here."""
    pip("install", "--quiet", "--no-deps", "--no-compile", "--target", folder, *names)
    return folder


def run(packages: Path, *words: str | Path) -> str:
    """Run Python with these packages, which must succeed; return what it printed."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
