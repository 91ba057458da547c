"""The table of candidates for a terminal."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from onnxfold.model_io import shown_path
from onnxfold.report.fitted_tables import lines_of, print_table

# Statuses whose candidates get a line each, and summaries of the others.
_SUMMED = {
    "same": "make the same file as another",
    "skipped": "were cut off by the budget (--budget)",
    "missing": "need packages that are not installed (pip install 'onnxfold[tune]')",
}
_AS_IT_IS = "your file as it is; nothing right is faster beyond the spread"
_CUT_OFF = "your file as it is; nothing faster was found before the budget ended (--budget)"
_LEGEND = (
    "nodes: what a session executes; x noise: times the rounding error of the model itself; "
    "in brackets: 10% to 90% of the rounds"
)
_WORD = re.compile(r'"[^"]*"|\S+')
_NOT_RUN = "-"
_UNITS = {
    "noise_ratio": "x noise",
    "relative": "rel.",
    "cosine": "1-cos",
    "top1": "top-1",
    "kl": "KL",
}


def print_candidates(console: Console, report: Mapping[str, Any], *, verbose: bool = False) -> None:
    """Print correct candidates, the fastest first, then the others with the reason."""
    candidates: Sequence[Mapping[str, Any]] = report["candidates"]
    rows: list[tuple[str | Text, ...]] = []
    right = [row for row in candidates if row["status"] == "right"]
    for row in sorted(right, key=_ratio, reverse=True):
        style = "bold green" if row["name"] == report["winner"] else ""
        rows.append((
            Text(row["name"] + " *" * row["kernels"], style=style), str(row["session_nodes"]),
            shown_error(row["errors"]), shown_number(row["milliseconds"]), shown_ratio(row),
        ))  # fmt: skip
    print_table(console, ("chain",), rows, ("nodes", "error", "ms", "times as fast"))
    if right:
        console.print(_LEGEND)
    for row in candidates:
        if row["status"] in ("wrong", "failed"):
            console.print(f"{row['status']}: {row['name']}: {row['reason']}", soft_wrap=False)
        elif verbose and row["status"] in _SUMMED:
            console.print(f"{row['status']}: {row['name']}: {row['reason'] or ''}")
    counts = Counter(row["status"] for row in candidates)
    for status, words in _SUMMED.items():
        if counts[status] and not verbose:
            named = [row["name"] for row in candidates if row["status"] == status != "same"]
            console.print(f"{counts[status]} {words}{': ' * bool(named)}{'; '.join(named)}")
    if not report["timed"]:
        console.print(
            "no GPU here, so nothing was timed: the order of chains decides, as measured on an H200"
        )
    if any(row["kernels"] for row in right):
        console.print("* with the onnxfold library: onnxfold.register(session_options)")


def print_conclusion(
    console: Console, report: Mapping[str, Any], source: Path, output: Path
) -> None:
    """Print what was written, how to measure the gain, and how to make the file again."""
    place = shown_path(output)
    if not report["commands"]:
        cut = any(row["status"] == "skipped" for row in report["candidates"])
        console.print(f"wrote {place}: {_CUT_OFF if cut else _AS_IT_IS}")
        return
    console.print(f"wrote {place}: {report['winner']}{_passed_over(report)}")
    files = f"{shlex.quote(str(source))} {shlex.quote(place)}"
    again = [each.replace("tune IN OUT", f"tune {files}") for each in report["commands"]]
    for label, command in (("next", f"onnxfold bench {files}"), *(("again", one) for one in again)):
        for line in lines_of(_WORD.findall(f"{label}: {command}"), console.width, " \\"):
            console.print(line, soft_wrap=True)


def _passed_over(report: Mapping[str, Any]) -> str:
    """Return why a chain of the final with a higher ratio did not win, if there is one."""
    right = [row for row in report["candidates"] if row["status"] == "right"]
    timed = sorted((row for row in right if row["ratio_low"] is not None), key=_ratio)
    won = [row["ratio"] for row in timed if row["name"] == report["winner"]]
    if not won or timed[-1]["ratio"] <= won[0]:
        return ""
    return f", the simplest of the fastest: {timed[-1]['name']} is not faster beyond the spread"


def _ratio(row: Mapping[str, Any]) -> float:
    return float(row["ratio"] or 0.0)


def shown_error(errors: Mapping[str, float]) -> str:
    """Return the errors of a candidate with their metrics."""
    return ", ".join(f"{value:.2g} {_UNITS[name]}" for name, value in errors.items()) or _NOT_RUN


def shown_number(value: float | None) -> str:
    """Return milliseconds, or a dash if nothing was timed."""
    return _NOT_RUN if value is None else f"{value:.3g}"


def shown_ratio(row: Mapping[str, Any]) -> str:
    """Return the relative speed, with the spread if it reached the final."""
    if row["ratio"] is None:
        return _NOT_RUN
    if row["ratio_low"] is None:
        return f"about {row['ratio']:.2f}"
    return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
