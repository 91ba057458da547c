"""The command without a server: its help, and what it says where the extra is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from onnxfold.cli import application


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["onnxfold", "serve", *(str(word) for word in words)])
    try:
        application.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_the_help_teaches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    for words in ("Open Inference Protocol", "--max-batch", "/v2/health/ready", "onnxfold[serve]"):
        assert words in said


def test_a_missing_extra_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mlserver" else find(name)
    )
    assert run(monkeypatch, tmp_path / "model.onnx") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("onnxfold: serving needs mlserver: pip install 'onnxfold[serve]'")
