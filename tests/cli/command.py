"""Runs the command line in the process of the test; the fixture `cli` is a `Cli`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.main import get_command

from onnxfold.cli import application

__all__ = ["Cli", "run"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Return the exit code of a command."""
    monkeypatch.setattr(application, "app", _built(application.app))
    monkeypatch.setattr(sys, "argv", ["onnxfold", *(str(word) for word in words)])
    try:
        application.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@dataclass(frozen=True)
class Cli:
    """Calls to the command line, and what they print."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> int:
        return run(self.monkeypatch, *words)

    def readouterr(self) -> Any:
        """Return what was printed since this was asked last."""
        return self.capsys.readouterr()


@cache
def _built(app: Any) -> Any:
    """Build the commands once: typer does it at every call, in most of the time of a small one."""
    return get_command(app) if isinstance(app, Typer) else app
