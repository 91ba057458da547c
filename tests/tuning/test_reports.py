"""What is shown of a run: a table that fits a terminal, and a page that loads nothing."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision, TuneOptions
from onnxfold.tuning.tune_page import page, print_candidates, print_conclusion
from onnxfold.tuning.tune_result import Candidate, Status, TuneResult, document


def _candidate(*chain: str, **known: Any) -> Candidate:
    return Candidate(chain, **known)


@pytest.fixture
def report() -> dict[str, Any]:
    right = Status.RIGHT
    best = _candidate(
        "fusions", "optimizer", "fold-kernels", status=right, milliseconds=1.5, ratio=2.0,
        ratio_low=1.9, ratio_high=2.1, errors={"noise_ratio": 0.97}, operators={"Add": 3},
        nbytes=1000,
    )  # fmt: skip
    candidates = [
        _candidate(status=right, milliseconds=3.0, ratio=1.0, ratio_low=1.0, ratio_high=1.0),
        best,
        _candidate("int8", status=right, milliseconds=2.0, ratio=1.5, errors={"relative": 0.03}),
        _candidate("fusions", status=Status.FAILED, reason="fusions: KeyError: '<b>\x1b[31m'"),
        _candidate("slim", status=Status.SAME, reason="the same file as the model as it is"),
        _candidate("script", status=Status.SKIPPED, reason="the budget was spent"),
    ]
    result = TuneResult(candidates, best, ModelFacts("bert", 12, 768))
    options = TuneOptions(precision=(TargetPrecision.FP32, TargetPrecision.INT8))
    return document(result, options, Path("<model>.onnx"))


def _printed(report: dict[str, Any], *, verbose: bool = False) -> str:
    text = io.StringIO()
    print_candidates(Console(file=text, width=80), report, verbose=verbose)
    return text.getvalue()


def test_the_table_has_the_fastest_first_and_fits_80_columns(report: dict[str, Any]) -> None:
    lines = _printed(report).splitlines()
    timed = [line for line in lines if re.search(r"about|\d to \d", line)]
    assert [line.split()[0] for line in timed] == ["fusions", "int8", "the"]
    assert "2.00 (1.90 to 2.10)" in timed[0]
    assert "about 1.50" in timed[1]
    assert all(len(line) <= 80 for line in lines)
    assert "1 make the same file as another" in lines
    assert any(line.startswith("1 were cut off by the budget") for line in lines)
    assert any("onnxfold.register" in line for line in lines)


def test_the_conclusion_names_the_file_the_next_command_and_how_to_make_it_again(
    report: dict[str, Any],
) -> None:
    text = io.StringIO()
    console = Console(file=text, width=80)
    print_conclusion(console, report, Path("my model.onnx"), Path("fast.onnx"))
    assert text.getvalue().splitlines() == [
        "wrote fast.onnx: fusions > optimizer > fold-kernels",
        "next: onnxfold bench 'my model.onnx' fast.onnx",
        "again: onnxfold tune 'my model.onnx' fast.onnx --chain \\",
        '  "fusions > optimizer > fold-kernels" --model-type bert --num-heads 12 \\',
        "  --hidden-size 768",
    ]


def test_the_conclusion_says_why_a_chain_with_a_higher_ratio_did_not_win(
    report: dict[str, Any],
) -> None:
    like_it = next(row for row in report["candidates"] if row["name"] == report["winner"])
    seemed = {**like_it, "name": "seemed > so", "ratio": 3.0, "ratio_low": None}
    longer = {**like_it, "name": "a > longer > chain", "ratio": like_it["ratio"] + 0.01}
    said = []
    for more in ([], [seemed], [longer, seemed]):
        text = io.StringIO()
        told = {**report, "candidates": [*report["candidates"], *more]}
        print_conclusion(Console(file=text, width=200), told, Path("m.onnx"), Path("o.onnx"))
        said.append(text.getvalue().splitlines()[0])
    assert said[:2] == ["wrote o.onnx: fusions > optimizer > fold-kernels"] * 2
    why = "the simplest of the fastest: a > longer > chain is not faster beyond the spread"
    assert said[2] == f"{said[0]}, {why}"


@pytest.mark.parametrize(
    ("cut_off", "why"), [(True, "before the budget ended"), (False, "beyond the spread")]
)
def test_a_kept_file_says_whether_the_budget_ended(
    cut_off: bool, why: str, report: dict[str, Any]
) -> None:
    kept = [row for row in report["candidates"] if cut_off or row["status"] != "skipped"]
    text = io.StringIO()
    console = Console(file=text, width=200)
    told = {**report, "commands": [], "candidates": kept}
    print_conclusion(console, told, Path("m.onnx"), Path("fast.onnx"))
    (line,) = text.getvalue().splitlines()
    assert line.startswith("wrote fast.onnx: your file as it is; ")
    assert why in line


def test_every_candidate_is_named_where_asked_for(report: dict[str, Any]) -> None:
    said = _printed(report, verbose=True)
    assert "skipped: script: the budget was spent" in said
    assert "same: slim" in said


def test_a_page_escapes_names_and_plots_what_has_a_time_and_an_error(
    report: dict[str, Any],
) -> None:
    text = page(report)
    assert "<b>" not in text
    assert "&lt;model&gt;.onnx" in text
    plots = [re.findall("<circle", plot) for plot in text.split("<svg")[1:]]
    assert list(map(len, plots)) == [1, 1], "errors of one metric share an axis"
    assert re.findall(r'href="#(.*?)"', text) == ["candidate-2", "candidate-1"]
    assert '<tr id="candidate-1" class=winner><th scope="row">1. fusions' in text
    assert "http" not in text.replace("http-equiv", "")
    assert "onnxfold tune IN OUT --chain &quot;fusions &gt; optimizer &gt; fold-kernels" in text


def test_a_page_without_a_winner_says_so(report: dict[str, Any]) -> None:
    assert "nothing was written" in page({**report, "winner": None, "commands": []})
    kept = page({**report, "winner": "the model as it is", "commands": []})
    assert "Keep your file" in kept


def test_a_page_numbers_its_rows_and_keeps_what_was_not_made_closed(report: dict[str, Any]) -> None:
    text = page(report)
    rows = re.findall(r'<tr id="candidate-(\d)"', text)
    assert rows == ["1", "2", "3", "4"]
    closed = text.partition("1 the same file as another")[2]
    assert "slim: the same file as the model as it is" in closed
    assert "1 not tried</summary><ul><li>script: the budget was spent" in closed


def test_no_right_candidate_is_faster_and_more_exact_than_the_line(report: dict[str, Any]) -> None:
    """Of speeds 3, 2, 1.5 with errors 3, 4, 1, and a wrong one faster than all of them."""
    first = report["candidates"][1]
    points = [(3.0, 3.0, "right"), (2.0, 4.0, "right"), (1.5, 1.0, "right"), (4.0, 0.5, "wrong")]
    rows = [
        first | {"name": f"c{n}", "ratio": speed, "errors": {"noise_ratio": e}, "status": status}
        for n, (speed, e, status) in enumerate(points)
    ]
    text = page({**report, "winner": None, "candidates": rows})
    (line,) = re.findall(r'<polyline points="(.*?)"', text)
    found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="9"><title>(c\d)', text)
    dots = {name: f"{x},{y}" for x, y, name in found}
    assert line.split() == [dots["c0"], dots["c2"]]
