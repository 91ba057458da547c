"""Runs the command line in the process of the test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onnxfold.cli import application

__all__ = ["run"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Return the exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["onnxfold", *(str(word) for word in words)])
    try:
        application.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0
