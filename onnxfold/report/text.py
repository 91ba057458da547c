"""What the commands print: tables and sentences, made from the documents for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.check.result import FAR
from onnxfold.report.figures import figure_notes, figure_rows
from onnxfold.report.html import in_pieces

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "print_benchmark",
    "print_figures",
    "print_norms",
    "print_result",
    "print_triton",
    "print_verification",
    "tallied",
    "totals",
]

_BECOMES = {
    "rms": "RMSNorm",
    "fused_layer_norm": "one LayerNorm",
    "layer_norm": "LayerNorm",
    "crms": "CRMSNorm",
    "deferred": "deferred",
    "keep": "-",
}


def totals(summary: Mapping[str, Any]) -> str:
    """Return the one line that says what became of the norms."""
    layer_norms = _count(summary["layer_norms"], "LayerNorm")
    verb = "folds" if summary["layer_norms"] == 1 else "fold"
    line = f"{summary['foldable']} of {layer_norms} {verb} to RMSNorm"
    if summary.get("restored") is not None:
        rms_norms = _count(summary["rms_norms"], "RMSNorm")
        line = f"{summary['restored']} of {rms_norms} restored to LayerNorm"
    if summary.get("compressed") is not None:
        line += f", {summary['compressed']} of {_count(summary['norms'], 'norm')} to CRMSNorm"
    if summary.get("decompressed"):
        line += f", {_count(summary['decompressed'], 'CRMSNorm')} back to all channels"
    inserted = summary["inserted_centerings"]
    if inserted:
        line += f", with {inserted} inserted centring{'s' if inserted > 1 else ''}"
    if summary["split_bytes"]:
        line += f", {summary['split_bytes']:,} bytes of weights stored twice"
    gammas, betas = summary.get("gamma_fused", 0), summary.get("beta_fused", 0)
    if gammas or betas:
        line += f"; {_count(gammas, 'gamma')} and {_count(betas, 'beta')} move into the next "
        line += "linear layers"
    if summary.get("scales_fused"):
        line += f"; {_moving(summary['scales_fused'], 'scale')} into the linear layers before"
    if summary.get("deferred"):
        line += f"; {_count(summary['deferred'], 'norm')} deferred, "
        saved = summary["multiplications_saved"]
        word = "fewer" if saved >= 0 else "more"
        line += f"with {abs(saved):,} {word} multiplications per row"
    if summary.get("deferred_layer_norms"):
        line += f" ({_count(summary['deferred_layer_norms'], 'LayerNorm')} with their mean)"
    if summary.get("reinstated"):
        line += f"; {_count(summary['reinstated'], 'deferred norm')} computed in place again"
    return line


def _roundings(summary: Mapping[str, Any]) -> str | None:
    """Return the line on norms whose results move, towards the exact ones; None without any."""
    number = summary.get("moved_by_rounding", 0)
    if not number:
        return None
    return (
        f"{_count(number, 'norm')} computed by E[x^2] - E[x]^2, by x g - mean(x) g or with "
        "roundings in between: results move by rounding, towards the exact ones"
    )


def _alignment(norms: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the line on what rows of d - 1 numbers are multiples of; None without any."""
    sizes = sorted({norm["size"] for norm in norms if norm["action"] == "crms"})
    if not sizes:
        return None
    told = "; ".join(
        f"{d:,} channels stored as {d - 1:,}, multiples of {_alignment_of(d):,} before and of "
        f"{_alignment_of(d - 1):,} now"
        for d in sizes
    )
    return f"{told}: measure what that costs (onnxfold bench), or give --multiple-of"


def _alignment_of(size: int) -> int:
    """Return the largest power of two that divides a size."""
    return size & -size


def _moving(number: int, thing: str) -> str:
    return f"{_count(number, thing)} move{'s' if number == 1 else ''}"


def _claimed(document: Mapping[str, Any]) -> str | None:
    """Return the line on shapes that only the model's own declarations tell; None without any."""
    claims = document.get("claimed_shapes")
    if not claims or not claims["count"]:
        return None
    worst = claims["worst"]
    inferred = "no shape" if worst["inferred"] is None else _sizes(worst["inferred"])
    return (
        f"{_count(claims['count'], 'shape')} that the model declares cannot be confirmed and "
        f"{'is' if claims['count'] == 1 else 'are'} believed; the worst: '{worst['value']}' is "
        f"declared {_sizes(worst['claimed'])}, inference finds {inferred}"
    )


def _sizes(shape: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def print_norms(console: Console, document: Mapping[str, Any], *, listed: bool = True) -> None:
    """Print one row per norm where they are ``listed``, the reasons tallied, and the totals."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("norm", "is", "becomes", "weights centred, or why not"):
        table.add_column(heading, overflow="fold")
    for row in document["norms"]:
        style = "green" if row["foldable"] or row["action"] in ("layer_norm", "crms") else ""
        table.add_row(
            Text(row["name"]),
            Text(f"{row['kind']} {row['size']}"),
            Text(_BECOMES[row["action"]], style=style),
            Text(_because(row)),
        )
    if document.get("unmatched_exclude") is not None:
        pattern = document["unmatched_exclude"]
        sentence = f"warning: --exclude {pattern!r} matches the name of no norm"
        console.print(Text(sentence), style="yellow")
    if not document["norms"]:
        console.print("no norms")
        return
    if listed:
        console.print(table)
    for line in tallied(document["norms"]):
        console.print(Text(line))
    console.print(Text(totals(document["summary"]), style="bold"))
    for remark in (
        _roundings(document["summary"]),
        _alignment(document["norms"]),
        _claimed(document),
    ):
        if remark is not None:
            console.print(Text(remark))


def print_figures(console: Console, document: Mapping[str, Any], *, every: bool) -> None:
    """Print the table of before and after; what stays the same where ``every`` is true."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in figure_rows(document, every=every):
        if every or row.before != row.after:
            table.add_row(Text(row.label), f"{row.before:,}", f"{row.after:,}", row.change)
    if table.row_count:
        console.print(table)
        for note in figure_notes(document):
            console.print(Text(note))
    else:
        console.print("the same operators, parameters and costs of norms")


def print_verification(console: Console, document: Mapping[str, Any]) -> None:
    """Print one row per output and the verdict."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("output", "max error", "rms error", "rms of the original", "ratio"):
        table.add_column(heading)
    for row in document["outputs"]:
        numbers = ("max_abs_error", "rms_error", "original_rms_error", "noise_ratio")
        table.add_row(Text(row["name"]), *(_digits(row[number], 3) for number in numbers))
    console.print(table)
    _print_limits(console, document)
    verdict = "the same function" if document["passed"] else "NOT the same function"
    style = "bold green" if document["passed"] else "bold red"
    console.print(Text(f"{verdict}: {_checked(document)}", style=style))


_TRUTHS = {"float64": "a float64 run", "onnxruntime": "an unoptimized run of the original"}


def _checked(document: Mapping[str, Any]) -> str:
    outputs: Sequence[Mapping[str, Any]] = document["outputs"]
    said = []
    for method, truth in _TRUTHS.items():
        rows = [row for row in outputs if row["method"] == method]
        if not rows:
            continue
        error, ratio = (_digits(_largest(rows, key), 2) for key in ("max_abs_error", "noise_ratio"))
        whose = "" if len(rows) == len(outputs) else f" for {_named(rows)}"
        noise = "the original's own rounding error"
        said.append(f"max error {error} against {truth}{whose}, {ratio} times {noise}")
    samples, pieces = _count(document["samples"], "sample"), in_pieces(document)
    return f"{'; '.join(said)} ({samples}, {document['runtime']}{pieces})"


def _largest(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The largest of some numbers, of which None is not finite."""
    numbers = [row[key] for row in rows]
    return None if None in numbers else max(numbers)


def _named(rows: Sequence[Mapping[str, Any]]) -> str:
    others = f" and {_count(len(rows) - 1, 'other output')}" if len(rows) > 1 else ""
    return f"'{rows[0]['name']}'{others}"


def _print_limits(console: Console, document: Mapping[str, Any]) -> None:
    """Say of which outputs the comparison says less than of others, and why."""
    from rich.text import Text

    outputs: Sequence[Mapping[str, Any]] = document["outputs"]
    for reason in dict.fromkeys(row["reason"] for row in outputs if row["reason"]):
        rows = [row for row in outputs if row["reason"] == reason]
        console.print(Text(f"note: no float64 run judged {_named(rows)}: {reason}"))
    noisy = [row for row in outputs if row["relative_noise"] is None or row["relative_noise"] > FAR]
    if noisy:
        noisy.sort(key=lambda row: -(row["relative_noise"] or float("inf")))
        size = _digits(noisy[0]["relative_noise"], 2)
        sentence = (
            f"warning: {_named(noisy)}: rounding errors of the original alone are {size} times the "
            f"output's size (chaotic, quantised or close to 0), so that an error of "
            f"{_digits(noisy[0]['bound'], 2)} passes"
        )
        console.print(Text(sentence), style="yellow")
    if names := document.get("nothing_compared"):
        sentence = (
            f"warning: nothing was compared for {_named([{'name': name} for name in names])}: all "
            "of it is NaN or infinite, in the original too; give inputs for which it is not "
            "(--inputs)"
        )
        console.print(Text(sentence), style="yellow")


def _digits(number: float | None, digits: int) -> str:
    """A number of the JSON document, in which infinities and NaN are null."""
    return "not finite" if number is None else f"{number:.{digits}g}"


def print_result(console: Console, report: Mapping[str, Any], *, verbose: bool) -> None:
    """Print what optimize did: the norms, the checks, the file."""
    from rich.text import Text

    print_norms(console, report["inspect"], listed=verbose)
    if report["inspect"].get("range_warnings"):
        console.print(Text(_widest(report["inspect"]["range_warnings"])), style="yellow")
    for left in report.get("left_out", ()):
        sentence = f"the pass '{left['name']}' was left out: {left['reason']}"
        console.print(Text(sentence), style="yellow")
    if "before_after" in report:
        print_figures(console, report["before_after"], every=verbose)
    if "proof" in report:
        proof = report["proof"]
        console.print(
            f"proved: {_count(proof['folded_norms'], 'norm')} on zero-mean inputs, "
            f"{_changed_weights(proof)} seen by no other reader"
        )
    verification = report.get("verification", {})
    if "outputs" in verification:
        console.print(Text(f"checked: {_checked(verification)}"))
        _print_limits(console, verification)
    elif "proof" in report:
        console.print("not run: the result is proved, and was not compared (--check 0)")
    elif report.get("changed"):
        console.print("neither proved nor run (--no-check)")
    if "output" in report:
        written = report["output"]
        line = Text(f"wrote {written['path']}{_beside(written)}, {written['bytes']:,} bytes")
        if not report["changed"]:
            line.append(", unchanged")
        console.print(line, soft_wrap=True)  # a path that is cut in two cannot be copied
        if written.get("advice") and report["inspect"]["norms"]:
            console.print(Text(written["advice"]))
    if verbose:
        spent = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in report["timing_s"].items())
        console.print(Text(f"seconds: {spent}"))


def _changed_weights(proof: Mapping[str, Any]) -> str:
    shifted = proof.get("shifted_weights", 0)
    if shifted:
        return _count(shifted, "shifted weight")
    return _count(proof["centred_weights"], "centred weight")


def _widest(warnings: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for all weights whose range grows: how many, and the worst."""
    worst = max(warnings, key=lambda warning: warning["widening"])
    others = f", the most of {_count(len(warnings), 'weight')}" if len(warnings) > 1 else ""
    return (
        f"warning: {worst['cause']} widens the range of '{worst['weight']}' "
        f"{worst['widening']:.3g} times{others}, which may exceed the range of float16 and costs "
        "int8 precision; --exclude leaves it"
    )


def _beside(written: Mapping[str, Any]) -> str:
    """Name the data files of a written model: one by its path, several by their number."""
    files, shared = written.get("data_files", ()), written.get("shared_data", ())
    beside = ""
    if written["data"]:
        beside = f" and {written['data']}"
        beside += f" (the first of {len(files)} data files)" if len(files) > 1 else ""
    if shared:
        others = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        beside += f", which needs {shared[0]}{others} beside it"
    return beside


def print_triton(console: Console, report: Mapping[str, Any]) -> None:
    """Print what became of the model repository, after :func:`print_result`."""
    from rich.text import Text

    document = report["triton"]
    for path in document["files"]:
        if path != report["output"]["path"]:
            console.print(Text(f"wrote {path}"), soft_wrap=True)
    if document["without_kernels"] is not None:
        console.print(Text(f"no kernels: {document['without_kernels']}"), style="yellow")
    if document["batches_not_tried"] is not None:
        text = f"whether joined requests stay apart was not tried: {document['batches_not_tried']}"
        console.print(Text(text), style="yellow")
    command = f"tritonserver --model-repository={document['server_repository']}"
    console.print(Text(f"serve it with: {command}"), soft_wrap=True)


def print_benchmark(console: Console, document: Mapping[str, Any]) -> None:
    """Print one row per model and kernel choice, then where each spends its time."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "kernels", "ms", "20% - 80%", "of the first", "20% - 80%"):
        table.add_column(heading, overflow="fold")
    for row in document["measurements"]:
        table.add_row(
            Text(row["model"]),
            "onnxfold" if row["kernels"] else "stock",
            f"{row['median_ms']:.3f}",
            f"{row['p20_ms']:.3f} - {row['p80_ms']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['ratio_p20']:.3f} - {row['ratio_p80']:.3f}",
        )
    console.print(table)
    for row in document["measurements"]:
        spent = ", ".join(f"{name} {ms:.3f}" for name, ms in row["operators"].items())
        console.print(Text(f"{row['model']}: {spent} ms"))
    shapes = ", ".join(f"{name} {shape}" for name, shape in document["inputs"].items())
    console.print(
        Text(
            f"onnxruntime {document['onnxruntime']}, {', '.join(document['providers'])}, "
            f"{document['threads']} thread(s), {document['rounds']} rounds, {shapes}"
        )
    )


def _because(row: Mapping[str, Any]) -> str:
    if row["deferral"]:
        return _scale_went(row["deferral"])
    if row["foldable"] and not row["reason"]:
        writers: Sequence[str] = row["writers"]
        shown = ", ".join(writers[:2])
        return f"{shown} and {len(writers) - 2} more" if len(writers) > 2 else shown
    return row["reason"]["code"] if row["reason"] else ""


_PLACES = {
    "applied": "multiplied at",
    "tables": "in the tables of",
    "cancelled": "cancelled by",
    "centred": "mean taken out by",
    "gammas": "tables take the gammas of",
}


def _scale_went(deferral: Mapping[str, Any]) -> str:
    """Say where the scale of a deferred norm went, and what that saves."""
    places = [
        f"{said} {', '.join(deferral[key])}" for key, said in _PLACES.items() if deferral[key]
    ]
    saved = deferral["multiplications_saved"]
    word = "fewer" if saved >= 0 else "more"
    return "; ".join([*places, f"{abs(saved):,} {word} multiplications per row"])


def tallied(norms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each code of refusal: how often, and the sentence of the first norm."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for row in norms:
        reason = row["reason"]
        if not reason:
            continue
        counts[reason["code"]] += 1
        first.setdefault(reason["code"], f"{reason['sentence']} (norm '{row['name']}')")
    return [f"{count} x {code}: {first[code]}" for code, count in counts.most_common()]
