"""The report of optimize as one HTML page that needs nothing else: no network, no other file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

from onnxfold.refusal import EXPLANATIONS, RefusalCode
from onnxfold.report.before_after import KIND_NAMES, FigureRow, figure_notes, figure_rows
from onnxfold.report.drawing import drawing, fate_of
from onnxfold.report.plain import plain
from onnxfold.report.sentences import folds, priced

_BECOMES = {
    "rms": "RMSNorm",
    "fused_layer_norm": "fused LayerNorm",
    "layer_norm": "LayerNorm",
    "crms": "CRMSNorm",
    "deferred": "deferred",
    "keep": "as written",
}
_WIDE = 20  # characters that still fit one column of the facts
_TRUTHS = {
    "float64": "a float64 run of the original",
    "onnxruntime": "a run of the original without optimizations",
    "mixed": "a float64 run of the original, or its run without optimizations, as told below",
}


def page(report: Mapping[str, Any]) -> str:
    """Return the page for the JSON report of ``optimize``; whatever it names is escaped."""
    report = plain(report)
    inspect = report["inspect"]
    norms: Sequence[Mapping[str, Any]] = inspect["norms"]
    sections = (
        _facts(report),
        _figures(report.get("before_after"), priced(report)),
        drawing(norms),
        _norm_table(norms, report.get("measurement")),
        _reasons(norms),
        _verification(report.get("verification", {})),
        _proof(report.get("proof")),
        _timing(report.get("timing_s", {})),
        _provenance(report.get("run")),
    )
    template = Template(
        files("onnxfold.report").joinpath("report.html").read_text(encoding="utf-8")
    )
    return template.substitute(
        title=escape(_title(report)),
        verdict=_verdict(report),
        body="\n".join(section for section in sections if section),
    )


def _title(report: Mapping[str, Any]) -> str:
    output = report.get("output")
    return PurePath(output["path"]).name if output else "dry run"


def _verdict(report: Mapping[str, Any]) -> str:
    summary = report["inspect"]["summary"]
    folded = f"{summary['folded']} of {summary['layer_norms']}"
    text = f"<strong>{folded}</strong> LayerNorms become RMSNorm"
    inserted = summary["inserted_centerings"]
    if inserted:
        text += f", with {inserted} inserted centring{'s' if inserted > 1 else ''}"
    return text


def _facts(report: Mapping[str, Any]) -> str:
    model, summary = report["inspect"]["model"], report["inspect"]["summary"]
    facts = [
        ("parameters", f"{model['parameters']:,}"),
        ("nodes", f"{model['nodes']:,}"),
        ("opset", str(model["opset"])),
        ("norms", f"{summary['norms']:,}"),
        ("foldable, folded", f"{summary['foldable']}, {summary['folded']}"),
        ("gammas, betas moved", f"{summary['gamma_fused']}, {summary['beta_fused']}"),
        ("weights stored twice", f"{summary['split_bytes']:,} bytes"),
    ]
    output = report.get("output")
    if output:
        facts += [
            ("target", output["target"]),
            ("written", output["path"]),
            ("bytes", f"{output['bytes']:,}"),
        ]
        if output["data"]:
            names = output.get("data_files", [output["data"]])
            facts.append(("weights in", ", ".join(names)))
        if output.get("shared_data"):
            facts.append(("and, shared, in", ", ".join(output["shared_data"])))
        if output["functions"]:
            facts.append(("functions", ", ".join(output["functions"])))
    rows = "".join(
        f'<div class="{"wide" if len(value) > _WIDE else ""}"><dt>{name}</dt>'
        f"<dd>{escape(value)}</dd></div>"
        for name, value in facts
    )
    return f'<dl class="facts">{rows}</dl>'


def _figures(document: Mapping[str, Any] | None, price: str | None) -> str:
    """The table of before and after: what changes first, the rest on demand."""
    if document is None:
        return ""
    rows = figure_rows(document, every=True)
    said = [*figure_notes(document), *([] if price is None else [price])]
    notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in said)
    same = [row for row in rows if row.before == row.after]
    more = (
        f"<details><summary>{len(same)} that stay the same</summary>{_figure_table(same)}</details>"
    )
    changed = _figure_table([row for row in rows if row.before != row.after])
    return (
        f'<section id="before-after"><h2>Before and after</h2>{changed}{more if same else ""}'
        f"{notes}</section>"
    )


def _figure_table(rows: Sequence[FigureRow]) -> str:
    cells = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th><td class="number">{row.before:,}</td>'
        f'<td class="number">{row.after:,}</td><td class="number">{row.change}</td></tr>'
        for row in rows
    )
    headings = "".join(
        f'<th scope="col" class="number">{word}</th>' for word in ("before", "after", "change")
    )
    return (
        '<div class="scroll"><table class="narrow"><thead><tr><th scope="col">what</th>'
        f"{headings}</tr></thead><tbody>{cells}</tbody></table></div>"
    )


def _norm_table(norms: Sequence[Mapping[str, Any]], measurement: Mapping[str, Any] | None) -> str:
    if not norms:
        return "<section><h2>Norms</h2><p>This model has no norm.</p></section>"
    rows = "".join(_norm_row(index, norm, measurement) for index, norm in enumerate(norms))
    return (
        '<section><h2>Norms</h2><p class="filter" hidden><label>Filter '
        '<input id="filter" type="search" placeholder="name, weight or reason"></label> '
        '<output id="shown" for="filter"></output></p>'
        '<div class="scroll"><table id="norms"><thead><tr><th scope="col">norm</th>'
        '<th scope="col">kind</th><th scope="col" class="number">size</th>'
        '<th scope="col">becomes</th><th scope="col">centred weights, or why not</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{_measured_over(measurement)}</section>"
    )


def _measured_over(measurement: Mapping[str, Any] | None) -> str:
    """Link the measurement of the same model, and say what it was measured over."""
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
        f'<tr id="norm-{index}"><th scope="row"><code>{escape(norm["name"])}</code></th>'
        f'<td>{escape(kind)}</td><td class="number">{norm["size"]}</td>'
        f'<td><span class="badge {fate}">{escape(_BECOMES[norm["action"]])}</span></td>'
        f"<td>{_because(norm)}{_affine(norm)}{_rounding(norm)}"
        f"{_measured(norm, measurement)}</td></tr>"
    )


def _measured(norm: Mapping[str, Any], measurement: Mapping[str, Any] | None) -> str:
    """What the mean subtraction does over data, where that was measured."""
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
            return "what it reads is centred already"
        if len(weights) <= 4:
            return " ".join(weights)
        return f"<details><summary>{len(weights)} weights</summary>{' '.join(weights)}</details>"
    reason = norm["reason"]
    if reason is None:
        return ""
    code = escape(reason["code"])
    return f'{escape(reason["sentence"])} <a href="#why-{code}"><small>{code}</small></a>'


def _reasons(norms: Sequence[Mapping[str, Any]]) -> str:
    """Every code that a norm has: how many have it, what it means, and what can be done."""
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
    """The input and its hash, the versions, the options and the date."""
    if run is None:
        return ""
    given = run["input"]
    facts = [
        ("input", given["path"]),
        ("its bytes", f"{given['bytes']:,}"),
        ("its sha256", given["sha256"]),
        ("options", ", ".join(f"{k} = {v}" for k, v in run["options"].items()) or "the defaults"),
        ("versions", ", ".join(f"{name} {number}" for name, number in run["versions"].items())),
        ("date", run["date"]),
    ]
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{escape(value)}</td></tr>' for name, value in facts
    )
    return (
        '<section id="provenance"><h2>Where this comes from</h2>'
        f'<table class="narrow"><tbody>{rows}</tbody></table></section>'
    )


def _affine(norm: Mapping[str, Any]) -> str:
    """What becomes of gamma and beta."""
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
    """Where the original subtracts large numbers and one operator does not."""
    if not norm.get("moves_by_rounding"):
        return ""
    return '<div class="affine">results move by rounding, towards the exact ones</div>'


def _verification(verification: Mapping[str, Any]) -> str:
    if "outputs" not in verification:
        return "<section><h2>Check</h2><p>Not run.</p></section>"
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(row["name"])}</code></th><td>{escape(row["dtype"])}'
        f"</td>{_number(row['max_abs_error'])}{_number(row['rms_error'])}"
        f"{_number(row['original_rms_error'])}{_number(row['noise_ratio'])}"
        f"<td>{_passed(row['passed'])}</td></tr>"
        for row in verification["outputs"]
    )
    limits = "".join(
        f"<p><code>{escape(row['name'])}</code>: {escape(row['reason'])}.</p>"
        for row in verification["outputs"]
        if row["reason"]
    )
    if single := in_batches_of_one(verification):
        limits += f"<p>It is {escape(single)}.</p>"
    truth = _TRUTHS.get(verification["method"], verification["method"])
    headings = ("largest error", "rms error", "rms error of the original", "noise ratio")
    cells = "".join(f'<th scope="col" class="number">{heading}</th>' for heading in headings)
    return (
        f"<section><h2>Check</h2><p>{_passed(verification['passed'])} Both models against "
        f"{escape(truth)}, {verification['samples']} samples, run by "
        f"{escape(verification['runtime'])}{in_pieces(verification)}. "
        "The noise ratio is the error of the new model in "
        f"multiples of the original's own rounding error; at most {verification['limit']:g} "
        'passes.</p><div class="scroll"><table><thead><tr><th scope="col">output</th>'
        f'<th scope="col">type</th>{cells}<th scope="col">verdict</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{limits}</section>"
    )


def in_pieces(verification: Mapping[str, Any]) -> str:
    """Say in how many pieces the models ran; nothing where they ran whole."""
    pieces = verification.get("pieces", 1)
    return f", in {pieces} pieces, since the model does not fit in memory" if pieces > 1 else ""


def in_batches_of_one(verification: Mapping[str, Any]) -> str:
    """Say why batches held one; nothing where they held more."""
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
        return "<section><h2>Proof</h2><p>Not run.</p></section>"
    failures = "".join(f"<li>{escape(failure)}</li>" for failure in proof["failures"])
    listed = f"<ul>{failures}</ul>" if failures else ""
    return (
        f"<section><h2>Proof</h2><p>{_passed(proof['passed'])} From the weights as they are "
        f"written: {proof['folded_norms']} folded norms read inputs of mean zero, and "
        f"{proof['centred_weights']} centred weights reach only readers that cannot see the "
        f"change. {proof['scaled_weights']} weights carry a gamma and {proof['shifted_biases']} "
        f"biases a beta of the norm before them.</p>{listed}</section>"
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
    return f'<section><h2>Time</h2><table class="narrow"><tbody>{rows}</tbody></table></section>'
