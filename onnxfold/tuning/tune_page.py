"""The report of a run: a table for a terminal, and one HTML page that loads nothing, with plots."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path, PurePath
from typing import Any

from rich.console import Console
from rich.text import Text

from onnxfold.model_io import shown_path
from onnxfold.report.drawing import framed, table
from onnxfold.report.fitted_tables import lines_of, print_table

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 760, 340, 64, 48, 16
_METRICS = ("relative", "noise_ratio", "cosine", "kl", "top1")
_LABELS = {
    "relative": "relative error of the worst output",
    "noise_ratio": "error, in multiples of the input model's own rounding error",
    "cosine": "1 - cosine of the worst output",
    "kl": "KL divergence of the worst output",
    "top1": "share of other answers",
}
_IN_SHORT = {"same": "the same file as another", "missing": "not installed", "skipped": "not tried"}
_HOW = (
    "Right candidates, the fastest first, then those that compute something else or could not be "
    "made. Numbers are those of the plot."
)
_HOW_TO_PLOT = (
    "Right is faster, lower is more exact, on a logarithmic scale. No right candidate is both "
    "faster and more exact than one on the line. A dot leads to its row."
)
_COLUMNS = ("chain", "", "times as fast", "ms", "error", "MB", "session nodes", "why")
_NUMBERS = _COLUMNS[2:6]
_MARKS, _FEW_DECADES = 8, 2  # on the axis of speeds at most; with marks between the powers of 10
_LEAST = 1e-3  # smaller errors differ by luck


def page(report: Mapping[str, Any]) -> str:
    """Return the page for the document of a run; all names are escaped."""
    shown = _ordered([row for row in report["candidates"] if row["status"] not in _IN_SHORT])
    rest = _ordered([row for row in report["candidates"] if row["status"] in _IN_SHORT])
    commands = "".join(f"<pre>{escape(line)}</pre>" for line in report["commands"])
    sections = (
        f'<section><dl class="facts wide">{_facts(report)}</dl></section>',
        _plots(report, shown),
        f"<section><h2>Candidates</h2><p>{_HOW}</p>{_table(shown, report['winner'])}"
        f"{_rest(rest)}</section>",
        f"<section><h2>To make it again</h2>{commands}</section>" if commands else "",
    )
    title, body = PurePath(report["input"]).name, "\n".join(filter(None, sections))
    return framed(f"onnxfold tune: {title}", title, _verdict(report), body)


def _verdict(report: Mapping[str, Any]) -> str:
    if report["winner"] is None:
        return "nothing of what was asked for is right; nothing was written"
    row = next(row for row in report["candidates"] if row["name"] == report["winner"])
    if not row["chain"]:
        return "<strong>Keep your file</strong>: nothing is faster beyond the spread"
    ratio = shown_ratio(row)
    return f"<strong>{ratio} times as fast</strong>: {escape(row['name'])}"


def _facts(report: Mapping[str, Any]) -> str:
    facts = report["facts"]
    rows = {
        "device": f"{report['device']}, threads: {report['threads']}",
        "precisions": ", ".join(report["precisions"]),
        "ONNX Runtime": report["onnxruntime"],
        "model type, heads, hidden size": f"{facts['model_type']}, {facts['num_heads'] or '?'}, "
        f"{facts['hidden_size'] or '?'}",
    }
    return "".join(f"<div><dt>{k}</dt><dd>{escape(str(v))}</dd></div>" for k, v in rows.items())


def _ordered(candidates: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    order = ("right", "wrong", "failed", "same", "missing", "skipped")
    return sorted(candidates, key=lambda c: (order.index(c["status"]), -(c["ratio"] or 0.0)))


def _table(rows: Sequence[Mapping[str, Any]], winner: str | None) -> str:
    cells = "\n".join(_row(number, row, winner) for number, row in enumerate(rows, 1))
    return table(_COLUMNS, cells, numbers=_NUMBERS, of=' id="candidates" class="cards"')


def _row(number: int, row: Mapping[str, Any], winner: str | None) -> str:
    operators = ", ".join(
        f"{count} {name}"
        for name, count in sorted(row["session_operators"].items(), key=lambda item: -item[1])
    )
    why = row["reason"] or ("written" if row["name"] == winner else "")
    if row["excluded"]:
        why += f" left as they were: {', '.join(row['excluded'])}"
    nodes = (
        f"<details><summary>{row['session_nodes']}</summary>"
        f"<small>{escape(operators)}</small></details>"
    )
    cells = (
        f'<th scope="row">{number}. {escape(row["name"])}</th>',
        f'<td><span class="badge {row["status"]}">{row["status"]}</span></td>',
        _cell("times as fast", shown_ratio(row)),
        _cell("ms", shown_number(row["milliseconds"])),
        _cell("error", shown_error(row["errors"])),
        _cell("MB", f"{row['bytes'] / 1e6:,.1f}" if row["bytes"] else ""),
        f'<td data-name="nodes">{nodes}</td>' if row["session_nodes"] else "<td></td>",
        f"<td>{escape(why)}</td>",
    )
    return (
        f'<tr id="candidate-{number}"{" class=winner" * (row["name"] == winner)}>'
        f"{''.join(cells)}</tr>"
    )


def _cell(name: str, shown: str) -> str:
    return f'<td class="number" data-name="{name}">{escape(shown)}</td>' if shown else "<td></td>"


def _rest(rows: Sequence[Mapping[str, Any]]) -> str:
    """List failed candidates and those with another's file, on demand, by reason."""
    parts = []
    for status, words in _IN_SHORT.items():
        named = [row for row in rows if row["status"] == status]
        items = "".join(
            f"<li>{escape(row['name'])}: {escape(row['reason'] or words)}</li>" for row in named
        )
        if named:
            parts.append(
                f"<details><summary>{len(named)} {words}</summary><ul>{items}</ul></details>"
            )
    return "".join(parts)


def _plots(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw the error of each timed candidate against its speed, errors of one metric together."""
    speeds = [row["ratio"] for row in rows if row["ratio"]]
    drawn = []
    for metric in _METRICS:
        points = [
            (number, row, math.log10(max(row["errors"][metric], _LEAST)))
            for number, row in enumerate(rows, 1)
            if row["ratio"] and _judged_by(row) == metric
        ]
        if points:
            scale = _Scale(speeds, [error for *_, error in points])
            dots = [_dot(scale, *point, winner=report["winner"]) for point in points]
            drawn.append(
                f'<p class="soft">Up: {_LABELS[metric]}.</p><div class="scroll">'
                f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
                f"{_axes(scale)}{_yours(scale)}{_front(scale, points)}{''.join(dots)}"
                "</svg></div>"
            )
    if not drawn:
        return ""
    heading = f"<h2>Error and speed</h2><p>{_HOW_TO_PLOT}</p>"
    return f'<section id="plot">{heading}{"".join(drawn)}</section>'


def _judged_by(row: Mapping[str, Any]) -> str | None:
    """Return the first metric of a candidate by which its error is finite, or None."""
    metric = next((name for name in _METRICS if name in row["errors"]), None)
    return metric if metric is None or math.isfinite(row["errors"][metric]) else None


class _Scale:
    """The positions of speeds and error exponents in the plot; your file's speed is 1."""

    def __init__(self, speeds: Sequence[float], exponents: Sequence[float]) -> None:
        self.slowest, self.fastest = 0.95 * min(1.0, *speeds), 1.05 * max(1.0, *speeds)
        self.low = math.floor(min(exponents))
        self.high = max(math.ceil(max(exponents)), self.low + 1)

    def x(self, speed: float) -> float:
        room = _WIDTH - _LEFT - _MARGIN
        return _LEFT + room * (speed - self.slowest) / (self.fastest - self.slowest)

    def y(self, exponent: float) -> float:
        room = _HEIGHT - _BOTTOM - _MARGIN
        return _MARGIN + room * (self.high - exponent) / (self.high - self.low)


def _axes(scale: _Scale) -> str:
    parts = (1, 2, 5) if scale.high - scale.low <= _FEW_DECADES else (1,)
    errors = [part * 10.0**e for e in range(scale.low, scale.high) for part in parts]
    heights = [(error, scale.y(math.log10(error))) for error in (*errors, 10.0**scale.high)]
    marks = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _MARGIN}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{error:g}</text>'
        for error, y in heights
    ]
    span = scale.fastest - scale.slowest
    unit = 10.0 ** math.floor(math.log10(span))
    step = unit * next(part for part in (0.1, 0.2, 0.5, 1, 2) if span <= _MARKS * part * unit)
    marks += [
        f'<text x="{scale.x(n * step):.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">'
        f"{n * step:g}</text>"
        for n in range(math.ceil(scale.slowest / step), int(scale.fastest / step) + 1)
    ]
    middle, bottom = (_LEFT + _WIDTH) / 2, _HEIGHT - 8
    label = "times as fast as your file"
    marks.append(f'<text x="{middle}" y="{bottom}" text-anchor="middle">{label}</text>')
    return "".join(marks)


def _yours(scale: _Scale) -> str:
    """Draw a line at the speed of the input, which has error 0."""
    x = scale.x(1.0)
    return (
        f'<line class="yours" x1="{x:.1f}" x2="{x:.1f}" y1="{_MARGIN}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text x="{x + 6:.1f}" y="{_MARGIN + 12}">your file</text>'
    )


_Point = tuple[int, Mapping[str, Any], float]


def _front(scale: _Scale, points: Sequence[_Point]) -> str:
    """Draw the correct candidates that no other beats in both speed and accuracy."""
    best: list[str] = []
    least = math.inf
    right = [(-row["ratio"], error) for _, row, error in points if row["status"] == "right"]
    for slowness, error in sorted(right):
        if error < least:
            best.append(f"{scale.x(-slowness):.1f},{scale.y(error):.1f}")
            least = error
    return f'<polyline points="{" ".join(best)}"/>' if best else ""


def _dot(
    scale: _Scale, number: int, row: Mapping[str, Any], error: float, *, winner: str | None
) -> str:
    kind = "winner" if row["name"] == winner else row["status"]
    x, y = scale.x(row["ratio"]), scale.y(error)
    tip = escape(f"{row['name']}: {shown_ratio(row)} times as fast, {shown_error(row['errors'])}")
    return (
        f'<a class="{kind}" href="#candidate-{number}"><circle class="{kind}" cx="{x:.1f}" '
        f'cy="{y:.1f}" r="9"><title>{tip}</title></circle><text x="{x:.1f}" y="{y + 4:.1f}" '
        f'text-anchor="middle">{number}</text></a>'
    )


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
