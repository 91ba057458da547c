"""The report of a run as one HTML page that loads nothing: a plot of error and time, the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

from onnxfold.tuning.tune_table import shown_error, shown_number, shown_ratio

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 760, 340, 64, 48, 16
_METRICS = ("relative", "noise_ratio", "cosine", "kl", "top1")
_LABELS = {
    "relative": "relative error of the worst output",
    "noise_ratio": "error, in multiples of the input model's own rounding error",
    "cosine": "1 - cosine of the worst output",
    "kl": "KL divergence of the worst output",
    "top1": "share of other answers",
}
_LEAST = 1e-3  # below it errors differ by luck


def page(report: Mapping[str, Any]) -> str:
    """Return the page for the document of a run; whatever it names is escaped."""
    template = Template(
        files("onnxfold.tuning").joinpath("tune_page.html").read_text(encoding="utf-8")
    )
    return template.substitute(
        title=escape(PurePath(report["input"]).name),
        verdict=_verdict(report),
        facts=_facts(report),
        plot=_plot(report),
        rows="\n".join(_row(row, report["winner"]) for row in _ordered(report["candidates"])),
        commands="\n".join(f"<pre>{escape(line)}</pre>" for line in report["commands"]),
    )


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


def _row(row: Mapping[str, Any], winner: str | None) -> str:
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
        f"<th>{escape(row['name'])}</th>",
        f'<td><span class="badge {row["status"]}">{row["status"]}</span></td>',
        f"<td>{nodes if row['session_nodes'] else ''}</td>",
        f"<td class=number>{row['bytes'] / 1e6:,.1f}</td>" if row["bytes"] else "<td></td>",
        f"<td>{escape(shown_error(row['errors']))}</td>",
        f"<td class=number>{shown_number(row['milliseconds'])}</td>",
        f"<td class=number>{shown_ratio(row)}</td>",
        f"<td>{escape(why)}</td>",
    )
    return f"<tr{' class=winner' * (row['name'] == winner)}>{''.join(cells)}</tr>"


def _plot(report: Mapping[str, Any]) -> str:
    """Draw the error of each timed candidate against its time; nothing where none has both."""
    timed = [row for row in report["candidates"] if row["milliseconds"] and row["errors"]]
    metric = next((m for m in _METRICS if any(m in row["errors"] for row in timed)), None)
    points = [(row, row["errors"][metric]) for row in timed if metric in row["errors"]]
    points = [(row, error) for row, error in points if math.isfinite(error)]
    if not points or metric is None:
        return ""
    errors = [math.log10(max(error, _LEAST)) for _, error in points]
    times = [row["milliseconds"] for row, _ in points]
    low, high = math.floor(min(errors)), max(math.ceil(max(errors)), math.floor(min(errors)) + 1)
    top = 1.1 * float(max(times))

    def x(time: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _MARGIN) * time / top

    def y(exponent: float) -> float:
        return _MARGIN + (_HEIGHT - _BOTTOM - _MARGIN) * (high - exponent) / (high - low)

    marks = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _MARGIN}" y1="{y(e):.1f}" y2="{y(e):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y(e) + 4:.1f}" text-anchor="end">{10.0**e:g}</text>'
        for e in range(low, high + 1)
    ]
    marks += [
        f'<text x="{x(t):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{t:.3g}</text>'
        for t in (top * part / 4 for part in range(5))
    ]
    dots = []
    for (row, _), exponent in zip(points, errors, strict=True):
        kind = "winner" if row["name"] == report["winner"] else row["status"]
        dots.append(
            f'<circle class="{kind}" cx="{x(row["milliseconds"]):.1f}" cy="{y(exponent):.1f}" '
            f'r="6">'
            f"<title>{escape(row['name'])}: {row['milliseconds']:.3g} ms</title></circle>"
        )
    return (
        '<section><h2>Error and time</h2><div class="scroll">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">'
        f"{''.join(marks)}{''.join(dots)}"
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        "milliseconds</text>"
        f"</svg></div><p>Up: {_LABELS[metric]}, a logarithmic scale. Left is faster, lower is more "
        "exact. Point at a dot to see its chain.</p></section>"
    )
