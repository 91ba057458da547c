"""The report of a measurement as one HTML page that loads nothing."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from onnxfold.geometry.figures import figures_of
from onnxfold.geometry.plots import svg
from onnxfold.report.drawing import framed, table
from onnxfold.report.inspection import plain

_MADE_UP = "synthetic inputs, which do not describe real data"


def page(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the page; raises UsageError if matplotlib is not installed."""
    reports = plain(reports)
    drawings = [
        f"<section><h2>{figure.title}</h2><p>{figure.how}</p>"
        f'<div class="figure">{svg(figure)}</div></section>'
        for figure in figures_of(reports)
    ]
    found = [f"<p>{escape(line)}</p>" for report in reports if (line := conclusion(report))]
    concluded = ["<section id=conclusion><h2>Conclusion</h2>", *found, "</section>"]
    details = [part for report in reports for part in (_table(report), _left(report))]
    title = ", ".join(dict.fromkeys(_name(report) for report in reports))
    several = len(set(map(_name, reports))) > 1
    said = [f"{_name(report)}: " * several + summary(report) for report in reports]
    verdict = "<br>".join(map(escape, said))
    body = "\n".join([*(concluded if found else ()), *drawings, *details])
    return framed(f"onnxfold measure: {title}", title, verdict, body)


def conclusion(report: Mapping[str, Any]) -> str | None:
    """Describe the share of the means and the effect of dropping them, if there are LayerNorms."""
    errors = [e for n in report["norms"] if (e := _mean(n["error_without_mean"])) is not None]
    if not errors:
        return None
    read = [norm["before"] for norm in report["norms"] if norm["error_without_mean"] is not None]
    shares = [share for side in read if (share := _mean(side["uniform_share"])) is not None]
    step = f"{_name(report)}, step {report['step']:,}" if "step" in report else _name(report)
    return (
        f"{step}: the means carry {_range(shares)} of the squared length of what the norms read. "
        f"Dropping their subtraction, without a fold, would change the normalized vectors by "
        f"{_range(errors)}."
    )


def _mean(statistic: Mapping[str, Any] | None) -> float | None:
    return None if statistic is None or statistic["mean"] is None else float(statistic["mean"])


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.2%}", f"{max(numbers):.2%}"
    return low if low == high else f"{low} to {high}"


def _name(report: Mapping[str, Any]) -> str:
    return str(report["model"] or "model")


def summary(report: Mapping[str, Any]) -> str:
    """Return a sentence on what was measured, and how reliable it is."""
    kind = report["data"]["kind"]
    text = f"{len(report['norms'])} norms "
    if kind == "training":
        text += "in training"
    else:
        text += f"over {report['rows']:,} rows of {_MADE_UP if kind == 'synthetic' else kind}"
    if report["bad_shards"]:
        text += f"; {len(report['bad_shards'])} bad shards left out"
    if "step" in report:
        text = f"step {report['step']:,}: {text}"
    return text if report["complete"] else f"{text}; ended before all was measured"


def norm_cells(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return for each norm its name, kind and size, and the means with their deviations."""
    return [
        (
            norm["name"],
            norm["kind"],
            str(norm["size"]),
            _spread(norm["before"]["angle_uniform"], 2),
            _spread(norm["after"]["angle_uniform"], 2),
            _spread(norm["before"]["uniform_share"], 4),
            _spread(norm["error_without_mean"], 4),
        )
        for norm in report["norms"]
    ]


def _spread(statistic: Mapping[str, Any] | None, digits: int) -> str:
    if statistic is None or statistic["mean"] is None:
        return "-"
    return f"{statistic['mean']:.{digits}f} ± {statistic['std']:.{digits}f}"


def _table(report: Mapping[str, Any]) -> str:
    head = ("norm", "kind", "size", "angle to 1 before", "after", "share along 1", "without mean")
    cells = ([escape(cell) for cell in cells] for cells in norm_cells(report))
    rows = "".join(f"<tr><th>{'<td>'.join(row)}</tr>" for row in cells)
    listed = table(head, rows.replace("±", "&plusmn;"), of=' class="plain"')
    return (
        f"<section><h2>Norms of {escape(_name(report))}</h2><p>Angles are in degrees, mean "
        "&plusmn; standard deviation; the share is that of the squared length. The last "
        "column is the relative error of the normalized vector if its mean were not subtracted.</p>"
        f"{listed}</section>"
    )


def _left(report: Mapping[str, Any]) -> str:
    items = [f"{norm['name']}: {norm['reason']}" for norm in report["refused"]]
    items += [
        f"{norm['name']}: padding could not be told, so it is counted"
        for norm in report["norms"]
        if norm["unmasked"]
    ]
    items += report["bad_shards"]
    if not items:
        return ""
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<section><h2>Left out, or to know</h2><ul>{listed}</ul></section>"
