"""--fuse-affine, and what it was called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Cli, run


def _moved(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *options: str,
) -> tuple[int, int]:
    assert run(monkeypatch, "inspect", model, "--json", *options) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    return summary["gamma_fused"], summary["beta_fused"]


def test_what_moves_is_chosen(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The layers after its norms have no bias."""
    never = _moved(model, monkeypatch, capsys, "--fuse-affine", "never")
    assert never == _moved(model, monkeypatch, capsys, "--no-fuse-affine") == (0, 0)
    auto = _moved(model, monkeypatch, capsys)
    assert auto == _moved(model, monkeypatch, capsys, "--fuse-affine", "auto")
    assert _moved(model, monkeypatch, capsys, "--fuse-affine", "always") == (3, 3)
    assert sum(auto) < 6


def test_two_options_that_differ_are_refused(model: Path, cli: Cli) -> None:
    asked = ("optimize", model, "--dry-run", "--no-fuse-affine", "--fuse-affine")
    assert cli(*asked, "always") == 2
    assert "exclude one another" in cli.readouterr().err
    assert cli(*asked, "never") == 0
