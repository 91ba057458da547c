"""The report of optimize as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

__all__ = ["in_pieces", "page"]

_FATES = {
    "folded": "folded to RMSNorm",
    "fused": "made one operator",
    "kept": "left as written",
}
_KINDS = {
    "layer_norm": "LayerNorm",
    "rms_norm": "RMSNorm",
    "group_norm": "GroupNorm",
    "instance_norm": "InstanceNorm",
    "l2_norm": "L2 norm",
    "dyt": "DyT",
}
_BECOMES = {
    "rms": "RMSNorm",
    "fused_layer_norm": "fused LayerNorm",
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
    inspect = report["inspect"]
    norms: Sequence[Mapping[str, Any]] = inspect["norms"]
    sections = (
        _facts(report),
        _drawing(norms),
        _norm_table(norms),
        _verification(report.get("verification", {})),
        _proof(report.get("proof")),
        _timing(report.get("timing_s", {})),
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
    text = (
        f"<strong>{summary['foldable']} of {summary['layer_norms']}</strong> LayerNorms "
        "become RMSNorm"
    )
    inserted = summary["inserted_centerings"]
    if inserted:
        text += f", with {inserted} inserted centring{'s' if inserted > 1 else ''}"
    return text


def _fate(norm: Mapping[str, Any]) -> str:
    if norm["foldable"]:
        return "folded"
    return "kept" if norm["action"] == "keep" else "fused"


def _facts(report: Mapping[str, Any]) -> str:
    model, summary = report["inspect"]["model"], report["inspect"]["summary"]
    facts = [
        ("parameters", f"{model['parameters']:,}"),
        ("nodes", f"{model['nodes']:,}"),
        ("opset", str(model["opset"])),
        ("norms", f"{summary['norms']:,}"),
        ("gammas, betas moved", f"{summary['gamma_fused']}, {summary['beta_fused']}"),
        ("weights stored twice", f"{summary['split_bytes']:,} bytes"),
        ("counted by Algorithm 1", str(summary["algorithm1"])),
        ("with centred embeddings", str(summary["algorithm1_embed_centred"])),
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


def _drawing(norms: Sequence[Mapping[str, Any]]) -> str:
    """The norms along the depth of the model, one mark each, in rows of at most 64."""
    if not norms:
        return ""
    per_row = min(64, max(16, len(norms)))
    step, height = 960 / per_row, 56
    rows = -(-len(norms) // per_row)
    parts = []
    for row in range(rows):
        last = min(len(norms) - row * per_row, per_row)
        y = row * height + 28
        parts.append(f'<line x1="0" y1="{y}" x2="{20 + last * step:.1f}" y2="{y}"/>')
    for index, norm in enumerate(norms):
        x = 20 + (index % per_row) * step + step * 0.15
        parts.append(_mark(index, norm, x, index // per_row * height, step * 0.7))
    legend = "".join(
        f'<span><i class="{fate}"></i>{sum(_fate(norm) == fate for norm in norms)} {words}</span>'
        for fate, words in _FATES.items()
    )
    return (
        '<section><h2>Along the depth of the model</h2><svg role="group" '
        f'aria-label="{len(norms)} norms from input to output" viewBox="0 0 1000 {rows * height}">'
        f'{"".join(parts)}</svg><p class="legend">{legend}</p></section>'
    )


def _mark(index: int, norm: Mapping[str, Any], x: float, top: float, width: float) -> str:
    """A tall filled bar for a fold, a short one for a fused norm, an outline for one left."""
    fate = _fate(norm)
    inset = 6 if fate == "folded" else 14
    tip = escape(f"{norm['name']}: {_KINDS.get(norm['kind'], norm['kind'])}, {_FATES[fate]}")
    return (
        f'<a href="#norm-{index}" aria-label="{tip}"><rect class="{fate}" x="{x:.1f}" '
        f'y="{top + inset:.1f}" width="{width:.1f}" height="{56 - 2 * inset}" rx="3">'
        f"<title>{tip}</title></rect></a>"
    )


def _norm_table(norms: Sequence[Mapping[str, Any]]) -> str:
    if not norms:
        return "<section><h2>Norms</h2><p>This model has no norm.</p></section>"
    rows = "".join(_norm_row(index, norm) for index, norm in enumerate(norms))
    return (
        '<section><h2>Norms</h2><p class="filter" hidden><label>Filter '
        '<input id="filter" type="search" placeholder="name, weight or reason"></label> '
        '<output id="shown" for="filter"></output></p>'
        '<div class="scroll"><table id="norms"><thead><tr><th scope="col">norm</th>'
        '<th scope="col">kind</th><th scope="col" class="number">size</th>'
        '<th scope="col">becomes</th><th scope="col">centred weights, or why not</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _norm_row(index: int, norm: Mapping[str, Any]) -> str:
    kind = _KINDS.get(norm["kind"], norm["kind"])
    if norm["form"] != "op":
        kind += f" ({norm['form']})"
    fate = _fate(norm)
    return (
        f'<tr id="norm-{index}"><th scope="row"><code>{escape(norm["name"])}</code></th>'
        f'<td>{escape(kind)}</td><td class="number">{norm["size"]}</td>'
        f'<td><span class="badge {fate}">{escape(_BECOMES[norm["action"]])}</span></td>'
        f"<td>{_because(norm)}{_affine(norm)}{_rounding(norm)}</td></tr>"
    )


def _because(norm: Mapping[str, Any]) -> str:
    if norm["foldable"]:
        weights = [f"<code>{escape(name)}</code>" for name in norm["writers"]]
        if not weights:
            return "what it reads is centred already"
        if len(weights) <= 4:
            return " ".join(weights)
        return f"<details><summary>{len(weights)} weights</summary>{' '.join(weights)}</details>"
    reason = norm["reason"]
    if reason is None:
        return ""
    return f"{escape(reason['sentence'])} <small>{escape(reason['code'])}</small>"


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
