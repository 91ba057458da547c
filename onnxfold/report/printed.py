"""The output of the commands: tables and sentences, made from the documents for machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.report import cautions, sentences
from onnxfold.report.before_after import figure_notes, figure_rows
from onnxfold.report.cautions import digits, named
from onnxfold.report.fitted_tables import print_table
from onnxfold.report.html import in_batches_of_one, in_pieces
from onnxfold.report.sentences import counted

if TYPE_CHECKING:
    from rich.console import Console


NORM_HEADINGS = ("norm", "is", "becomes", "weights centered, or why not")
_BECOMES = sentences.BECOMES | {"fused_layer_norm": "one LayerNorm", "keep": "-"}


def print_norms(console: Console, document: Mapping[str, Any], *, full: bool = False) -> None:
    """Print one row per norm that could fold, the totals, and the reasons tallied.

    Names are shortened to the width of a terminal unless the table is ``full``.
    """
    print_cautions(console, cautions.of_norms(document))
    for refusal in document.get("unsplit", ()):
        console.print(f"note: {refusal['sentence']}")
    if not document["norms"]:
        console.print(sentences.NOTHING)
        for line in sentences.centrings(document.get("centrings", ())):
            console.print(line)
        return
    print_norm_table(console, document, full=full)
    total, *others = norm_lines(document)
    console.print(total, style="bold")
    for line in others:
        console.print(line)


def print_norm_table(console: Console, document: Mapping[str, Any], *, full: bool) -> None:
    """Print one row per norm; those that never fold only if the table is ``full``."""
    from rich.text import Text

    rows = [
        (name, kind, Text(becomes, style="green" if folded else ""), why)
        for name, kind, becomes, why, folded in norm_rows(document, full=full)
    ]
    if rows:
        print_table(console, NORM_HEADINGS, rows, names=(0, 3), full=full)


def norm_rows(document: Mapping[str, Any], *, full: bool) -> list[tuple[str, str, str, str, bool]]:
    """Return the rows of the table of norms, each with whether the norm changes."""
    return [
        (
            row["name"],
            f"{row['kind']} {row['size']}",
            _BECOMES[row["action"]],
            sentences.because(row),
            row["action"] in ("layer_norm", "crms") or sentences.folds(row),
        )
        for row in document["norms"]
        if full or not sentences.without_mean(row)
    ]


def norm_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the totals of all norms, why others stay, and further remarks."""
    total = sentences.totals(document["summary"])
    return [total, *sentences.reasons(document), *sentences.remarks(document)]


def print_figures(
    console: Console, document: Mapping[str, Any], *, every: bool, price: str | None = None
) -> None:
    """Print the table of before and after; with unchanged rows if ``every`` is true."""
    rows = [
        (row.label, f"{row.before:,}", f"{row.after:,}", row.change)
        for row in figure_rows(document, every=every)
        if every or row.before != row.after
    ]
    if rows:
        print_table(console, ("",), rows, ("before", "after", "change"), names=(0,), full=every)
        for note in (*figure_notes(document), *([] if price is None else [price])):
            console.print(note)
    else:
        console.print("the same operators, parameters and costs of norms")


def print_verification(console: Console, document: Mapping[str, Any]) -> None:
    """Print one row per output and the verdict."""
    numbers = ("max_abs_error", "rms_error", "original_rms_error", "noise_ratio")
    headings = ("output", "max error", "rms error", "rms of the original", "ratio")
    rows = [
        (row["name"], *(digits(row[number], 3) for number in numbers))
        for row in document["outputs"]
    ]
    print_table(console, headings, rows, names=(0,))
    for note in check_limits(document):
        console.print(note)
    print_cautions(console, cautions.of_check(document))
    verdict = "the same function" if document["passed"] else "NOT the same function"
    style = "bold green" if document["passed"] else "bold red"
    console.print(f"{verdict}: {checked(document)}", style=style)
    _print_remarks(console, document)


def print_budget_verification(console: Console, document: Mapping[str, Any]) -> None:
    """Print the errors of each output with their limits, and the verdict."""
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
    console.print(f"{verdict} ({where})", style="bold green" if passed else "bold red")
    _print_remarks(console, document)


def _print_remarks(console: Console, document: Mapping[str, Any]) -> None:
    """Print where the models ran, the nodes at fault, and known traps."""
    for one in document.get("blame", ()):
        console.print(f"to blame: {sentences.blamed(one)}")
    for note in document.get("notes", ()):
        console.print(f"note: {note}")
    if document.get("data"):
        console.print(f"data: {document['data']}")


_TRUTHS = {"float64": "a float64 run", "onnxruntime": "an unoptimized run of the original"}


def checked(document: Mapping[str, Any]) -> str:
    """Return the size of the errors of a comparison, their reference, and the runtime."""
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
    """The largest of some numbers, where None means not finite."""
    numbers = [row[key] for row in rows]
    return None if None in numbers else max(numbers)


def check_limits(document: Mapping[str, Any]) -> list[str]:
    """Return the outputs for which the comparison is weaker than for others, and why."""
    single = in_batches_of_one(document)
    notes = [f"note: {single}"] if single else []
    outputs: Sequence[Mapping[str, Any]] = document["outputs"]
    for reason in dict.fromkeys(row["reason"] for row in outputs if row["reason"]):
        rows = [row for row in outputs if row["reason"] == reason]
        notes.append(f"note: no float64 run judged {named(rows)}: {reason}")
    return notes


def print_cautions(console: Console, told: Iterable[str]) -> None:
    """Print what must be printed even in quiet mode."""
    for sentence in told:
        console.print(sentence, style="yellow")


def scaled(document: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what became of each stream that was to fit float16."""
    if document is None:
        return
    streams = document["streams"]
    for row in streams:
        what = f"stream before {_norms(row)}"
        change = f"times 2^-{row['exponent']}" if row["exponent"] else "as it is"
        yield f"{what}: {change}{_range(row)}{_inexact(row)}"
    if document["data"] and streams:
        yield f"ranges are those of {document['data']}"
    for refusal in document["refusals"]:
        yield f"stream before '{refusal['norm']}' is not scaled: {refusal['sentence']}"


def split(document: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield how many gammas were split, and what the others stay for."""
    if document is None:
        return
    yield f"{counted(len(document['norms']), 'gamma')} split, by {document['by']}"
    reasons = {refusal["code"]: refusal["sentence"] for refusal in document["refusals"]}
    for code, sentence in reasons.items():
        count = sum(refusal["code"] == code for refusal in document["refusals"])
        stays = "gamma stays" if count == 1 else "gammas stay"
        yield f"{count} {stays} ({code}): {sentence}"


def rotated(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of each stream that was to be rotated, and of heads."""
    for row in report.get("rotated_streams", {}).get("streams", ()):
        weights = counted(len(row["weights"]), "weight")
        norms = counted(len(row["norms"]), "norm")
        why = ", for want of a Hadamard matrix" if row["substituted"] else ""
        yield (
            f"stream before '{row['name']}': rotated by a {row['matrix']} matrix of "
            f"{row['size']}{why}, seed {row['seed']}: {weights}, {norms}"
        )
    for refusal in report.get("rotated_streams", {}).get("refusals", ()):
        yield f"stream before '{refusal['name']}' is not rotated: {refusal['sentence']}"
    heads = report.get("rotated_heads", {}).get("streams", ())
    if heads:
        yield f"heads of {counted(len(heads), 'attention')} rotated between values and output"


def _norms(row: Mapping[str, Any]) -> str:
    others = len(row["norms"]) - 1
    return f"'{row['norm']}'" + (f" and {counted(others, 'other norm')}" if others else "")


def _range(row: Mapping[str, Any]) -> str:
    if not row["values"]:
        return ""
    most = max(row["values"], key=lambda value: value["before"])
    becomes = f" becomes {most['after']:.3g}" if row["exponent"] else ""
    return (
        f", largest {most['before']:.3g} ('{most['value']}'){becomes}, "
        f"{100 * most['share']:.2g} % of float16's range"
    )


def _inexact(row: Mapping[str, Any]) -> str:
    if not row["subnormal"]:
        return ""
    return f"; {counted(row['subnormal'], 'number')} of weights became subnormal"


def measured(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the error of every candidate of a search, the best first, and what is kept."""
    for row in sorted(document["candidates"], key=lambda row: float(row["error"])):
        yield f"{row['name']:10} {document['to']} error {100 * row['error']:.3g} %"
    gain = document["gain"]
    kept = f"{document['best']} is kept, {gain:.2f} times less error"
    if document["best"] == "as it is":
        kept = "no rotation helps: the model stays as it is"
    yield f"{kept}, on {document['data']}"
