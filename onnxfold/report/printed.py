"""What the commands print: tables and sentences, made from the documents for machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.report import cautions, sentences
from onnxfold.report.before_after import figure_notes, figure_rows, refusal_notes
from onnxfold.report.cautions import digits, named
from onnxfold.report.fitted_tables import print_table
from onnxfold.report.html import in_batches_of_one, in_pieces

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BECOMES = {
    "rms": "RMSNorm",
    "fused_layer_norm": "one LayerNorm",
    "layer_norm": "LayerNorm",
    "crms": "CRMSNorm",
    "deferred": "deferred",
    "keep": "-",
}


def print_norms(
    console: Console, document: Mapping[str, Any], *, listed: bool = True, full: bool = False
) -> None:
    """Print one row per norm where they are ``listed``, the totals, and the reasons tallied.

    Names are shortened to the width of a terminal, unless they are to be ``full``.
    """
    from rich.text import Text

    _print_cautions(console, cautions.of_norms(document))
    for refusal in document.get("unsplit", ()):
        console.print(Text(f"note: {refusal['sentence']}"))
    if not document["norms"]:
        console.print("no norms")
        return
    if listed:
        headings = ("norm", "is", "becomes", "weights centred, or why not")
        rows = [_norm_cells(row) for row in document["norms"]]
        print_table(console, headings, rows, names=(0, 3), full=full)
    console.print(Text(sentences.totals(document["summary"]), style="bold"))
    for line in (*sentences.tallied(document["norms"]), *sentences.staying(document["norms"])):
        console.print(Text(line))
    for remark in (
        sentences.roundings(document["summary"]),
        sentences.alignment(document["norms"]),
        sentences.claimed(document),
        *sentences.untrue(document),
    ):
        if remark is not None:
            console.print(Text(remark))


def _norm_cells(row: Mapping[str, Any]) -> tuple[str | Text, ...]:
    from rich.text import Text

    style = "green" if row["action"] in ("layer_norm", "crms") or sentences.folds(row) else ""
    becomes = Text(_BECOMES[row["action"]], style=style)
    return row["name"], f"{row['kind']} {row['size']}", becomes, sentences.because(row)


def print_figures(
    console: Console, document: Mapping[str, Any], *, every: bool, price: str | None = None
) -> None:
    """Print the table of before and after; what stays the same where ``every`` is true."""
    from rich.text import Text

    rows = [
        (row.label, f"{row.before:,}", f"{row.after:,}", row.change)
        for row in figure_rows(document, every=every)
        if every or row.before != row.after
    ]
    if rows:
        print_table(console, ("",), rows, ("before", "after", "change"), names=(0,), full=every)
        for note in (*figure_notes(document), *([] if price is None else [price])):
            console.print(Text(note))
    else:
        console.print("the same operators, parameters and costs of norms")


def print_verification(console: Console, document: Mapping[str, Any]) -> None:
    """Print one row per output and the verdict."""
    from rich.text import Text

    numbers = ("max_abs_error", "rms_error", "original_rms_error", "noise_ratio")
    headings = ("output", "max error", "rms error", "rms of the original", "ratio")
    rows = [
        (row["name"], *(digits(row[number], 3) for number in numbers))
        for row in document["outputs"]
    ]
    print_table(console, headings, rows, names=(0,))
    _print_limits(console, document)
    verdict = "the same function" if document["passed"] else "NOT the same function"
    style = "bold green" if document["passed"] else "bold red"
    console.print(Text(f"{verdict}: {_checked(document)}", style=style))
    _print_remarks(console, document)


def print_budget_verification(console: Console, document: Mapping[str, Any]) -> None:
    """Print the errors of each output beside what the budget allows, and the verdict."""
    from rich.text import Text

    rows: list[tuple[str, ...]] = []
    for output in document["outputs"]:
        for metric, worst in output["worst"].items():
            numbers = (output["mean"][metric], worst)
            limit = document["budget"].get(metric)
            rows.append((
                output["name"],
                metric,
                *(digits(number, 3) for number in numbers),
                str(output["worst_sample"]),
                "" if limit is None else digits(limit, 3),
            ))  # fmt: skip
    if rows:
        headings = ("mean", "worst", "sample", "allowed")
        print_table(console, ("output", "metric"), rows, headings, names=(0,))
    passed = document["passed"]
    verdict = "within the budget" if passed else f"NOT within the budget: {document['sentence']}"
    samples = sentences.counted(document["samples"], "sample")
    where = f"{samples} against {_TRUTHS[document['method']]}, {document['runtime']}"
    console.print(Text(f"{verdict} ({where})", style="bold green" if passed else "bold red"))
    _print_remarks(console, document)


def _print_remarks(console: Console, document: Mapping[str, Any]) -> None:
    """Print what the models ran on, who is to blame, and known traps."""
    from rich.text import Text

    for one in document.get("blame", ()):
        console.print(Text(f"to blame: {sentences.blamed(one)}"))
    for note in document.get("notes", ()):
        console.print(Text(f"note: {note}"))
    if document.get("data"):
        console.print(Text(f"data: {document['data']}"))


_TRUTHS = {"float64": "a float64 run", "onnxruntime": "an unoptimized run of the original"}


def _checked(document: Mapping[str, Any]) -> str:
    outputs: Sequence[Mapping[str, Any]] = document["outputs"]
    said = []
    for method, truth in _TRUTHS.items():
        rows = [row for row in outputs if row["method"] == method]
        if not rows:
            continue
        error, ratio = (digits(_largest(rows, key), 2) for key in ("max_abs_error", "noise_ratio"))
        whose = "" if len(rows) == len(outputs) else f" for {named(rows)}"
        noise = "the original's own rounding error"
        said.append(f"max error {error} against {truth}{whose}, {ratio} times {noise}")
    samples, pieces = sentences.counted(document["samples"], "sample"), in_pieces(document)
    return f"{'; '.join(said)} ({samples}, {document['runtime']}{pieces})"


def _largest(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The largest of some numbers, of which None is not finite."""
    numbers = [row[key] for row in rows]
    return None if None in numbers else max(numbers)


def _print_limits(console: Console, document: Mapping[str, Any]) -> None:
    """Say of which outputs the comparison says less than of others, and why."""
    from rich.text import Text

    if single := in_batches_of_one(document):
        console.print(Text(f"note: {single}"))
    outputs: Sequence[Mapping[str, Any]] = document["outputs"]
    for reason in dict.fromkeys(row["reason"] for row in outputs if row["reason"]):
        rows = [row for row in outputs if row["reason"] == reason]
        console.print(Text(f"note: no float64 run judged {named(rows)}: {reason}"))
    _print_cautions(console, cautions.of_check(document))


def _print_cautions(console: Console, told: Iterable[str]) -> None:
    from rich.text import Text

    for sentence in told:
        console.print(Text(sentence), style="yellow")


def print_result(
    console: Console, report: Mapping[str, Any], *, verbose: bool, source: Path | None = None
) -> None:
    """Print what optimize did: the norms, the checks, what a session runs, the file, what next.

    ``source``: the file that was optimized.  The whole table of before and after: ``verbose``.
    """
    from rich.text import Text

    print_norms(console, report["inspect"], listed=verbose, full=verbose)
    _print_cautions(console, cautions.of_plan(report))
    _print_evidence(console, report)
    counted = report.get("before_after")
    if counted is not None and verbose:
        print_figures(console, counted, every=True, price=sentences.priced(report))
    elif counted is not None:
        _print_gains(console, counted, sentences.priced(report))
    if "output" in report:
        _print_output(console, report, source)
    if counted is not None and not verbose:
        console.print(Text(sentences.file_nodes(counted)))


def _print_evidence(console: Console, report: Mapping[str, Any]) -> None:
    """Print what was proved and what was compared."""
    from rich.text import Text

    if "proof" in report:
        proof = report["proof"]
        console.print(
            f"proved: {sentences.counted(proof['folded_norms'], 'norm')} on zero-mean inputs, "
            f"{sentences.changed_weights(proof)} seen by no other reader"
        )
    verification = report.get("verification", {})
    if "outputs" in verification:
        console.print(Text(f"checked: {_checked(verification)}"))
        _print_limits(console, verification)
    elif "proof" in report:
        console.print("not run: the result is proved, and was not compared (--check 0)")
    elif report.get("changed"):
        console.print("neither proved nor run (--no-check)")


def _print_gains(console: Console, document: Mapping[str, Any], price: str | None) -> None:
    """Print what the norms and a session do less, what more of it costs, and why there is none."""
    from rich.text import Text

    for line in (sentences.sessions(document), price, sentences.work(document)):
        if line is not None:
            console.print(Text(line))
    for note in refusal_notes(document):
        console.print(Text(note))


def _print_output(console: Console, report: Mapping[str, Any], source: Path | None) -> None:
    """Print where the file is, what it asks for, and how to measure what it gains."""
    from rich.text import Text

    written = report["output"]
    line = Text(f"wrote {written['path']}{_beside(written)}, {written['bytes']:,} bytes")
    if not report["changed"]:
        line.append(", unchanged")
    console.print(line, soft_wrap=True)  # a path that is cut in two cannot be copied
    if report["inspect"]["norms"]:
        _print_advice(console, written)
    if report["changed"] and source is not None:
        command = shlex.join(["onnxfold", "bench", str(source), written["path"]])
        console.print(Text(f"next: {command}"), soft_wrap=True)


def _print_advice(console: Console, written: Mapping[str, Any]) -> None:
    """Print what another target would gain, and what other tools make of the file."""
    from rich.text import Text

    if written.get("advice"):
        console.print(Text(written["advice"]))
    for note in written.get("notes", ()):
        console.print(Text(f"note: {note}"))


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
    if not report["output"]["functions"]:
        console.print(Text(f"no kernels: {document['without_kernels']}"))
    _print_cautions(console, cautions.of_deployment(report))
    command = f"tritonserver --model-repository={document['server_repository']}"
    console.print(Text(f"serve it with: {command}"), soft_wrap=True)
