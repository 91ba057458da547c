"""What the commands print: tables and sentences, made from the documents for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.check.result import FAR
from onnxfold.report import sentences
from onnxfold.report.before_after import figure_notes, figure_rows
from onnxfold.report.html import in_batches_of_one, in_pieces

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BECOMES = {
    "rms": "RMSNorm",
    "fused_layer_norm": "one LayerNorm",
    "layer_norm": "LayerNorm",
    "crms": "CRMSNorm",
    "deferred": "deferred",
    "keep": "-",
}


def table(words: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return a table without rows; the columns of ``numbers`` stand behind and to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in words:
        made.add_column(heading, overflow="fold")
    for heading in numbers:
        made.add_column(heading, justify="right", overflow="fold")
    return made


def print_norms(console: Console, document: Mapping[str, Any], *, listed: bool = True) -> None:
    """Print one row per norm where they are ``listed``, the reasons tallied, and the totals."""
    from rich.text import Text

    rows = table(("norm", "is", "becomes", "weights centred, or why not"))
    for row in document["norms"]:
        style = "green" if row["action"] in ("layer_norm", "crms") or sentences.folds(row) else ""
        rows.add_row(
            Text(row["name"]),
            Text(f"{row['kind']} {row['size']}"),
            Text(_BECOMES[row["action"]], style=style),
            Text(sentences.because(row)),
        )
    if document.get("unmatched_exclude") is not None:
        pattern = document["unmatched_exclude"]
        sentence = f"warning: --exclude {pattern!r} matches the name of no norm"
        console.print(Text(sentence), style="yellow")
    for refusal in document.get("unsplit", ()):
        console.print(Text(f"note: {refusal['sentence']}"))
    if not document["norms"]:
        console.print("no norms")
        return
    if listed:
        console.print(rows)
    for line in sentences.tallied(document["norms"]):
        console.print(Text(line))
    console.print(Text(sentences.totals(document["summary"]), style="bold"))
    for remark in (
        sentences.roundings(document["summary"]),
        sentences.alignment(document["norms"]),
        sentences.claimed(document),
    ):
        if remark is not None:
            console.print(Text(remark))


def print_figures(
    console: Console, document: Mapping[str, Any], *, every: bool, price: str | None = None
) -> None:
    """Print the table of before and after; what stays the same where ``every`` is true."""
    from rich.text import Text

    rows = table([""], ("before", "after", "change"))
    for row in figure_rows(document, every=every):
        if every or row.before != row.after:
            rows.add_row(Text(row.label), f"{row.before:,}", f"{row.after:,}", row.change)
    if rows.row_count:
        console.print(rows)
        for note in (*figure_notes(document), *([] if price is None else [price])):
            console.print(Text(note))
    else:
        console.print("the same operators, parameters and costs of norms")


def print_verification(console: Console, document: Mapping[str, Any]) -> None:
    """Print one row per output and the verdict."""
    from rich.text import Text

    rows = table(("output", "max error", "rms error", "rms of the original", "ratio"))
    for row in document["outputs"]:
        numbers = ("max_abs_error", "rms_error", "original_rms_error", "noise_ratio")
        rows.add_row(Text(row["name"]), *(_digits(row[number], 3) for number in numbers))
    console.print(rows)
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
    samples, pieces = sentences.counted(document["samples"], "sample"), in_pieces(document)
    return f"{'; '.join(said)} ({samples}, {document['runtime']}{pieces})"


def _largest(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The largest of some numbers, of which None is not finite."""
    numbers = [row[key] for row in rows]
    return None if None in numbers else max(numbers)


def _named(rows: Sequence[Mapping[str, Any]]) -> str:
    others = f" and {sentences.counted(len(rows) - 1, 'other output')}" if len(rows) > 1 else ""
    return f"'{rows[0]['name']}'{others}"


def _print_limits(console: Console, document: Mapping[str, Any]) -> None:
    """Say of which outputs the comparison says less than of others, and why."""
    from rich.text import Text

    if single := in_batches_of_one(document):
        console.print(Text(f"note: {single}"))
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
            f"warning: nothing was compared for {_named([{'name': name} for name in names])}: it "
            "is empty, or all of it is NaN or infinite, in the original too; give inputs for which "
            "it is not (--inputs)"
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
        console.print(Text(sentences.widest(report["inspect"]["range_warnings"])), style="yellow")
    for left in report.get("left_out", ()):
        moves = [{"name": name} for name in left.get("moves", ())]
        where = f" for {_named(moves)}" if moves else ""
        sentence = f"the pass '{left['name']}' was left out{where}: {left['reason']}"
        console.print(Text(sentence), style="yellow")
    if "before_after" in report:
        figures, price = report["before_after"], sentences.priced(report)
        print_figures(console, figures, every=verbose, price=price)
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
    from rich.text import Text

    rows = table(("model", "kernels", "ms", "20% - 80%", "of the first", "20% - 80%"))
    for row in document["measurements"]:
        rows.add_row(
            Text(row["model"]),
            "onnxfold" if row["kernels"] else "stock",
            f"{row['median_ms']:.3f}",
            f"{row['p20_ms']:.3f} - {row['p80_ms']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['ratio_p20']:.3f} - {row['ratio_p80']:.3f}",
        )
    console.print(rows)
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
