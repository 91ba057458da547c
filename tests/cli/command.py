"""Runs the command line in the process of the test."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.main import get_command

from onnxfold.cli import application

__all__ = ["run"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Return the exit code of a command."""
    monkeypatch.setattr(application, "app", _built(application.app))
    monkeypatch.setattr(sys, "argv", ["onnxfold", *(str(word) for word in words)])
    try:
        application.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@cache
def _built(app: Any) -> Any:
    """Build the commands once: typer does it at every call, in most of the time of a small one."""
    return get_command(app) if isinstance(app, Typer) else app
