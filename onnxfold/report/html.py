"""The report of optimize as one self-contained HTML page: no network, no other file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import PurePath
from typing import Any

from onnxfold.refusal import EXPLANATIONS, RefusalCode
from onnxfold.report import sentences
from onnxfold.report.before_after import (
    KIND_NAMES,
    FigureRow,
    figure_notes,
    file_rows,
    priced,
    session_rows,
)
from onnxfold.report.drawing import breakable, drawing, fate_of, framed, table
from onnxfold.report.inspection import plain
from onnxfold.report.sentences import folds

_SESSION = "ONNX Runtime joins operators when it loads a file. This is what it then executes."
_COLUMNS = ("norm", "kind", "size", "becomes", "weights centered, or why not")
_TRUTHS = {
    "float64": "a float64 run of the original",
    "onnxruntime": "a run of the original without optimizations",
    "mixed": "a float64 run of the original, or its run without optimizations, as told below",
}


def page(report: Mapping[str, Any]) -> str:
    """Return the page for the JSON report of ``optimize``; all names are escaped."""
    report = plain(report)
    norms: Sequence[Mapping[str, Any]] = report["inspect"]["norms"]
    counted = report.get("before_after")
    sections = (
        f'<div class="pair">{_proof(report.get("proof"))}'
        f"{_verification(report.get('verification', {}))}</div>",
        f'<div class="pair">{_input(report)}{_output(report)}</div>',
        drawing(norms),
        _session(report, counted),
        _norm_table(norms, report.get("measurement")),
        _reasons(norms),
        _file(counted),
        _timing(report.get("timing_s", {})),
        _provenance(report.get("run")),
    )
    title = _title(report)
    body = "\n".join(section for section in sections if section)
    return framed(f"onnxfold: {title}", title, _verdict(report), body, script="filter.js")


def _title(report: Mapping[str, Any]) -> str:
    output = report.get("output")
    return PurePath(output["path"]).name if output else "dry run"


def _verdict(report: Mapping[str, Any]) -> str:
    summary = report["inspect"]["summary"]
    folded = f"{summary['folded']} of {summary['layer_norms']}"
    text = f"<strong>{folded}</strong> LayerNorms become RMSNorm"
    inserted = summary["inserted_centerings"]
    if inserted:
        text += f", with {inserted} inserted centering{'s' if inserted > 1 else ''}"
    return text


def _input(report: Mapping[str, Any]) -> str:
    model, given = report["inspect"]["model"], report.get("run", {}).get("input")
    facts = [] if given is None else [("file", given["path"]), ("bytes", f"{given['bytes']:,}")]
    facts += [
        ("parameters", f"{model['parameters']:,}"),
        ("nodes", f"{model['nodes']:,}"),
        ("opset", str(model["opset"])),
        ("norms", f"{report['inspect']['summary']['norms']:,}"),
    ]
    facts += [] if given is None else [("sha256", given["sha256"])]
    return _facts("input", "Input", facts)


def _output(report: Mapping[str, Any]) -> str:
    summary, output = report["inspect"]["summary"], report.get("output")
    after = report.get("before_after", {}).get("after")
    facts = []
    if output:
        facts += [("file", output["path"]), ("bytes", f"{output['bytes']:,}")]
        if output["data"]:
            names = output.get("data_files", [output["data"]])
            facts.append(("weights in", ", ".join(names)))
        if output.get("shared_data"):
            facts.append(("and, shared, in", ", ".join(output["shared_data"])))
    if after:
        facts += [("parameters", f"{after['parameters']:,}"), ("nodes", f"{after['nodes']:,}")]
    if output:
        facts.append(("target", output["target"]))
        if output["functions"]:
            facts.append(("functions", ", ".join(output["functions"])))
    facts += [
        ("foldable, folded", f"{summary['foldable']}, {summary['folded']}"),
        ("gammas, betas moved", f"{summary['gamma_fused']}, {summary['beta_fused']}"),
        ("weights stored twice", f"{summary['split_bytes']:,} bytes"),
    ]
    return _facts("output", "Output" if output else "Output, which was not written", facts)


def _facts(name: str, heading: str, facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{what}</dt><dd>{breakable(value)}</dd>" for what, value in facts)
    return f'<section id="{name}"><h2>{heading}</h2><dl class="facts">{rows}</dl></section>'


def _session(report: Mapping[str, Any], document: Mapping[str, Any] | None) -> str:
    """Describe what an ONNX Runtime session executes before and after."""
    if document is None or not (rows := session_rows(document, every=True)):
        return ""
    said = [line for line in (priced(report), sentences.work(document)) if line]
    return (
        f'<section id="session"><h2>What a session runs</h2><p class="soft">{_SESSION}</p>'
        f"{_figures(rows, said)}</section>"
    )


def _file(document: Mapping[str, Any] | None) -> str:
    """Describe the content of the files, before and after."""
    if document is None:
        return ""
    figures = _figures(file_rows(document, every=True), figure_notes(document))
    return f'<section id="file"><h2>What the file holds</h2>{figures}</section>'


def _figures(rows: Sequence[FigureRow], notes: Sequence[str]) -> str:
    """Return a table of before and after: changes first, the rest on demand, then the notes."""
    same = [row for row in rows if row.before == row.after]
    more = (
        f"<details><summary>{len(same)} that stay the same</summary>{_figure_table(same)}</details>"
    )
    changed = _figure_table([row for row in rows if row.before != row.after])
    said = "".join(f"<p><small>{escape(note)}</small></p>" for note in notes)
    return f"{changed}{more if same else ''}{said}"


def _figure_table(rows: Sequence[FigureRow]) -> str:
    cells = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th><td class="number">{row.before:,}</td>'
        f'<td class="number">{row.after:,}</td><td class="number">{row.change}</td></tr>'
        for row in rows
    )
    numbers = ("before", "after", "change")
    return table(("what", *numbers), cells, numbers=numbers, of=' class="narrow"')


def _norm_table(norms: Sequence[Mapping[str, Any]], measurement: Mapping[str, Any] | None) -> str:
    if not norms:
        return "<section><h2>Norms</h2><p>This model has no norm.</p></section>"
    rows = "".join(_norm_row(index, norm, measurement) for index, norm in enumerate(norms))
    listed = table(_COLUMNS, rows, numbers=("size",), of=' id="norms" class="cards"')
    return (
        '<section><h2>Norms</h2><p class="filter" hidden><label>Filter '
        '<input id="filter" type="search" placeholder="name, weight or reason"></label> '
        '<output id="shown" for="filter"></output></p>'
        f"{listed}{_measured_over(measurement)}</section>"
    )


def _measured_over(measurement: Mapping[str, Any] | None) -> str:
    """Link the measurement of the same model, and name its data."""
    if measurement is None:
        return ""
    path = escape(PurePath(measurement["path"]).as_posix())
    over = escape(f"{measurement['rows']:,} rows of {measurement['data']}")
    return f'<p id="measured">Measured over {over}: <a href="{path}">{path}</a>.</p>'


def _norm_row(index: int, norm: Mapping[str, Any], measurement: Mapping[str, Any] | None) -> str:
    kind = KIND_NAMES.get(norm["kind"], norm["kind"])
    if norm["form"] != "op":
        kind += f" ({norm['form']})"
    fate = fate_of(norm)
    return (
        f'<tr id="norm-{index}"><th scope="row"><code>{breakable(norm["name"])}</code></th>'
        f'<td>{escape(kind)}</td><td class="number">{norm["size"]}</td>'
        f'<td><span class="badge {fate}">{escape(sentences.BECOMES[norm["action"]])}</span></td>'
        f"<td>{_because(norm)}{_affine(norm)}{_rounding(norm)}"
        f"{_measured(norm, measurement)}</td></tr>"
    )


def _measured(norm: Mapping[str, Any], measurement: Mapping[str, Any] | None) -> str:
    """Describe the effect of the mean subtraction over data, if it was measured."""
    found = None if measurement is None else measurement["norms"].get(norm["name"])
    if found is None or found["angle_uniform"] is None:
        return ""
    said = f"measured: {found['angle_uniform']:.2f} degrees to the uniform vector"
    if found["error_without_mean"] is not None:
        said += f"; without its mean subtraction it would err by {found['error_without_mean']:.2%}"
    return f'<div class="affine">{said}</div>'


def _because(norm: Mapping[str, Any]) -> str:
    if folds(norm):
        weights = [f"<code>{escape(name)}</code>" for name in norm["writers"]]
        if not weights:
            return "what it reads is already centered"
        if len(weights) <= 4:
            return " ".join(weights)
        return f"<details><summary>{len(weights)} weights</summary>{' '.join(weights)}</details>"
    reason = norm["reason"]
    if reason is None:
        return ""
    code = escape(reason["code"])
    return f'{escape(reason["sentence"])} <a href="#why-{code}"><small>{code}</small></a>'


def _reasons(norms: Sequence[Mapping[str, Any]]) -> str:
    """List every code that a norm has: how many have it, its meaning, and the remedy."""
    counts = Counter(norm["reason"]["code"] for norm in norms if norm["reason"])
    if not counts:
        return ""
    rows = "".join(
        f'<dt id="why-{escape(code)}"><code>{escape(code)}</code> &times; {count}</dt>'
        f"<dd>{escape(EXPLANATIONS[RefusalCode(code)].meaning)}"
        f"<p>What to do: {escape(EXPLANATIONS[RefusalCode(code)].remedy)}</p></dd>"
        for code, count in counts.most_common()
    )
    return f'<section><h2>What the reasons mean</h2><dl class="reasons">{rows}</dl></section>'


def _provenance(run: Mapping[str, Any] | None) -> str:
    """List the options, the versions and the date."""
    if run is None:
        return ""
    facts = [
        ("options", ", ".join(f"{k} = {v}" for k, v in run["options"].items()) or "the defaults"),
        ("versions", ", ".join(f"{name} {number}" for name, number in run["versions"].items())),
        ("date", run["date"]),
    ]
    return _facts("provenance", "How this was made", facts)


def _affine(norm: Mapping[str, Any]) -> str:
    """Describe where gamma and beta went."""
    parts: Sequence[str] = norm["affine"]
    moved = [part for part in parts if norm[f"{part}_fused"]]
    stay = [part for part in parts if part not in moved]
    lines = []
    if moved:
        lines.append(f"{' and '.join(moved)} moved into the next linear layers")
    if stay:
        reason = norm["affine_reason"]
        lines.append(" and ".join(stay) + (f" kept: {reason['sentence']}" if reason else " kept"))
    return "".join(f'<div class="affine">{escape(line)}</div>' for line in lines)


def _rounding(norm: Mapping[str, Any]) -> str:
    """Note a norm in which the original subtracts large numbers and one operator does not."""
    if not norm.get("moves_by_rounding"):
        return ""
    return '<div class="affine">results move by rounding, towards the exact ones</div>'


def _verification(verification: Mapping[str, Any]) -> str:
    if "outputs" not in verification:
        return '<section id="check"><h2>Check</h2><p>Not run.</p></section>'
    limits = "".join(
        f"<p><code>{escape(row['name'])}</code>: {escape(row['reason'])}.</p>"
        for row in verification["outputs"]
        if row["reason"]
    )
    if single := in_batches_of_one(verification):
        limits += f"<p>It is {escape(single)}.</p>"
    ratio, limit = verification["noise_ratio"], verification["limit"]
    errs = (
        "has errors that are not finite"
        if ratio is None
        else f"has {ratio:.2g} times the original's own rounding error"
    )
    truth = _TRUTHS.get(verification["method"], verification["method"])
    return (
        f'<section id="check"><h2>Check {_passed(verification["passed"])}</h2>'
        f"<p>The result {errs}; at most {limit:g} times passes.</p>"
        f'<p class="soft">Both against {escape(truth)}, {verification["samples"]} samples, run by '
        f"{escape(verification['runtime'])}{in_pieces(verification)}.</p>"
        f"{limits}{_errors(verification['outputs'])}</section>"
    )


def _errors(outputs: Sequence[Mapping[str, Any]]) -> str:
    """List the errors of each output, on demand."""
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(row["name"])}</code></th><td>{escape(row["dtype"])}'
        f"</td>{_number(row['max_abs_error'])}{_number(row['rms_error'])}"
        f"{_number(row['original_rms_error'])}{_number(row['noise_ratio'])}"
        f"<td>{_passed(row['passed'])}</td></tr>"
        for row in outputs
    )
    numbers = ("largest error", "rms error", "rms error of the original", "ratio")
    errors = table(("output", "type", *numbers, "verdict"), rows, numbers=numbers)
    count = sentences.counted(len(outputs), "output")
    return f"<details><summary>{count}</summary>{errors}</details>"


def in_pieces(verification: Mapping[str, Any]) -> str:
    """Describe in how many pieces the models ran; empty if they ran whole."""
    pieces = verification.get("pieces", 1)
    return f", in {pieces} pieces, since the model does not fit in memory" if pieces > 1 else ""


def in_batches_of_one(verification: Mapping[str, Any]) -> str:
    """Explain why batches had one row; empty if they had more."""
    why = verification.get("single")
    return f"compared in batches of one, since others do not run: {why}" if why else ""


def _number(value: float | None) -> str:
    shown = "not finite" if value is None else f"{value:.3g}"
    return f'<td class="number">{shown}</td>'


def _passed(passed: bool) -> str:
    words, fate = ("passed", "folded") if passed else ("failed", "failed")
    return f'<span class="badge {fate}">{words}</span>'


def _proof(proof: Mapping[str, Any] | None) -> str:
    if proof is None:
        return '<section id="proof"><h2>Proof</h2><p>Not run.</p></section>'
    failures = "".join(f"<li>{escape(failure)}</li>" for failure in proof["failures"])
    listed = f"<ul>{failures}</ul>" if failures else ""
    return (
        f'<section id="proof"><h2>Proof {_passed(proof["passed"])}</h2><p>From the weights as they '
        f"are written: {proof['folded_norms']} folded norms read inputs of mean zero, and "
        f"{proof['centred_weights']} centered weights reach only readers that cannot see the "
        f'change.</p><p class="soft">{proof["scaled_weights"]} weights carry a gamma and '
        f"{proof['shifted_biases']} biases a beta of the norm before them.</p>{listed}</section>"
    )


def _timing(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return ""
    longest = max(*seconds.values(), 1e-9)
    rows = "".join(
        f'<tr><th scope="row">{escape(stage)}</th><td class="number">{spent:.3f} s</td>'
        f'<td><meter max="{longest:.6f}" value="{spent:.6f}" aria-hidden="true"></meter></td></tr>'
        for stage, spent in seconds.items()
    )
    listed = f'<table class="narrow"><tbody>{rows}</tbody></table>'
    return f'<section id="time"><h2>Time</h2>{listed}</section>'
