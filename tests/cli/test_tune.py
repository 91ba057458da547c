"""onnxfold tune on the command line: one line of error, a table, reports, JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import Cli
from tests.tuning.forked import forked_jobs

_DIGITS = Path(__file__).parents[2] / "models/digits_vit/digits_vit.onnx"


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--chain", "fussions"), 2, "no step 'fussions'; there are slim"),
        (("--budget", "0"), 2, "--budget takes seconds, more than 0"),
        (("--precision", "fp8"), 2, "there is no precision 'fp8'; there are fp32, fp16"),
        (("--metric", "speed"), 2, "no metric"),
        (("--data", "nowhere.npz"), 3, "nowhere.npz"),
        (("--inputs", "image:1,1"), 2, "image"),
        (("--report", "r.txt"), 2, "must end in .json or .html"),
        (("--threads", "0"), 2, "must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_nothing_is_written(
    options: tuple[str, ...], code: int, sentence: str, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "fast.onnx"
    assert cli("tune", _DIGITS, "-o", out, *options) == code
    said = cli.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_out_is_asked_for(cli: Cli) -> None:
    assert cli("tune", _DIGITS) == 2
    assert "-o OUT" in cli.readouterr().err


def test_table_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    out, page, document = (tmp_path / name for name in ("fast.onnx", "r.html", "r.json"))
    forked_jobs(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    chains = (
        "--chain",
        "fold-ort",
        "--chain",
        "int8",
        "--precision",
        "fp32",
        "--precision",
        "int8",
    )
    reports = ("--report", page, "--report", document)
    assert cli("tune", _DIGITS, out, *chains, *reports) == 0
    said = cli.readouterr().out
    assert f"wrote {out}: " in " ".join(said.split())
    rows = [
        line for line in said.splitlines() if re.match("(fold-ort|int8|the model as it is) ", line)
    ]
    assert len(rows) == 3
    assert all(len(line) <= 80 for line in rows)
    report = json.loads(document.read_text())
    assert {row["status"] for row in report["candidates"]} == {"right"}
    assert report["winner"] in ("fold-ort", "int8", "the model as it is")
    text = page.read_text()
    assert "fold-ort" in text
    assert "<svg" in text
    assert "http" not in text.replace("http-equiv", "")


def test_nothing_right_exits_1_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    forked_jobs(monkeypatch)
    out = tmp_path / "fast.onnx"
    wanted = ("--chain", "int8", "--precision", "int8", "--max-error", "1e-9", "--json")
    assert cli("tune", _DIGITS, "-o", out, *wanted) == 1
    captured = cli.readouterr()
    assert json.loads(captured.out)["winner"] is None
    assert "nothing of int8 is right, nothing was written; int8: output 'logits'" in captured.err
    assert not out.exists()
