"""The final output of `optimize` and `convert`: gains, what stays, the proof, the file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.model_io import shown_path
from onnxfold.report import cautions, printed, sentences
from onnxfold.report.before_after import priced, refusal_notes
from onnxfold.report.fitted_tables import lines_of, shortened
from onnxfold.report.printed import (
    check_limits,
    checked,
    print_figures,
    print_norm_table,
)

if TYPE_CHECKING:
    from rich.console import Console

_LINES = 15  # of a terminal, in total
_MOST_OF_REASONS, _LEAST_OF_REASONS = 8, 4
_LINES_OF_A_REASON = 3
_NAME = 28  # characters of a name in a reason
_CAUTION, _TOTAL = "yellow", "bold"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of text.

    ``words``: what is meant to be copied, instead of the text; the line is split between them
    alone, and ends in ``joint`` there.  ``spare`` lines are dropped if there is not enough room.
    """

    text: str = ""
    style: str = ""
    words: tuple[str, ...] = ()
    joint: str = ""
    spare: bool = False

    def height(self, console: Console) -> int:
        """Return how many lines of a terminal it fills."""
        from rich.text import Text

        if self.words:
            return sum(-(-len(line) // console.width) for line in self.lines(console.width))
        return len(Text(self.text).wrap(console, console.width))

    def lines(self, width: int) -> list[str]:
        """Split the words into lines; only a word longer than a line exceeds the width."""
        return lines_of(self.words, width, self.joint)


def print_result(
    console: Console, report: Mapping[str, Any], *, verbose: bool, source: Path | None = None
) -> None:
    """Print the result of a command: gains, what stays, proof and check, the file, what is next.

    ``source``: the file that was optimized.  All norms, reasons and numbers: ``verbose``.
    """
    first, last = list(_gains(report)), list(_rest(report, source))
    reasons = [_Line(reason) for reason in sentences.reasons(report["inspect"])]
    if verbose:
        print_norm_table(console, report["inspect"], full=True)
    else:
        room = _LINES - _height(console, first)
        wanted = min(_LEAST_OF_REASONS, _height(console, reasons))
        last = _without_spare(console, last, room - wanted)
        room -= _height(console, last)
        reasons = _fitting(console, reasons, min(room, _MOST_OF_REASONS))
        first = _without_spare(console, first, _LINES - _height(console, [*reasons, *last]))
    for line in (*first, *reasons):
        _print(console, line)
    if verbose and report.get("before_after") is not None:
        price = priced(report)
        print_figures(console, report["before_after"], every=True, price=price)
    for line in last:
        _print(console, line)
    if verbose:
        spent = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in report["timing_s"].items())
        _print(console, _Line(f"seconds: {spent}"))


def _without_spare(console: Console, lines: Sequence[_Line], room: int) -> list[_Line]:
    """Drop spare lines, from the end, until the rest fits."""
    kept = list(lines)
    for line in reversed([line for line in lines if line.spare]):
        if _height(console, kept) > room:
            kept.remove(line)
    return kept


def _height(console: Console, lines: Sequence[_Line]) -> int:
    return sum(line.height(console) for line in lines)


def _print(console: Console, line: _Line) -> None:

    if line.words:
        for part in line.lines(console.width):
            console.print(part, style=line.style, soft_wrap=True)
    else:
        console.print(line.text, style=line.style)


def _gains(report: Mapping[str, Any]) -> Iterator[_Line]:
    """Yield the changes of the norms, and the savings of norms and session."""
    inspect = report["inspect"]
    total = sentences.totals(inspect["summary"]) if inspect["norms"] else sentences.NOTHING
    yield _Line(total, _TOTAL)
    counted = report.get("before_after")
    if counted is not None:
        session = sentences.sessions(counted)
        lines = (sentences.work(counted), session, priced(report))
        yield from (_Line(line, spare=line != session) for line in lines if line is not None)
        yield from map(_Line, refusal_notes(counted))
    yield from map(_Line, printed.split(report.get("split_gammas")))
    yield from map(_Line, printed.rotated(report))
    yield from map(_Line, printed.scaled(report.get("scaled_streams")))


def _fitting(console: Console, reasons: Sequence[_Line], room: int) -> list[_Line]:
    """Return as many reasons as fit, the first ones in full, the others by code."""
    brief = [_Line(_brief(console, reason.text)) for reason in reasons]
    for number in range(len(brief), 0, -1):
        lines = [*brief[:number], *_by_code(reasons[number:])]
        if _height(console, lines) <= room:
            return lines
    lines = _by_code(reasons)
    count = sentences.counted(len(reasons), "reason")
    brief = [_Line(f"{count} why some stay: onnxfold inspect")] if reasons else []
    return lines if _height(console, lines) <= room else brief


def _by_code(reasons: Sequence[_Line]) -> list[_Line]:
    if not reasons:
        return []
    codes = ", ".join(sentences.without_sentence(reason.text) for reason in reasons)
    return [_Line(f"{codes}: onnxfold inspect has the reasons")]


def _brief(console: Console, reason: str) -> str:
    """Return a reason that fits in a few lines: names lose their middle, then it loses its end."""
    room = _LINES_OF_A_REASON * console.width
    if len(reason) <= room:
        return reason
    words = shortened(reason, _NAME).split(" ")
    while len(" ".join(words)) > room - console.width // 4:
        del words[-1]
    text = " ".join(words)
    clause = max(map(text.rfind, ("; ", " (")))
    return text[:clause] if clause > len(text) // 2 else f"{text} …"


def _rest(report: Mapping[str, Any], source: Path | None) -> Iterator[_Line]:
    """Yield the cautions, the evidence, and the location of the file."""
    inspect = report["inspect"]
    told = (*cautions.of_norms(inspect), *cautions.of_plan(report))
    yield from (_Line(caution, _CAUTION) for caution in told)
    notes = [f"note: {refusal['sentence']}" for refusal in inspect.get("unsplit", ())]
    believed = sentences.claimed(inspect)
    for remark in (*notes, *sentences.remarks(inspect)):
        yield _Line(remark, spare=remark == believed)
    yield from _evidence(report)
    yield from (_Line(line, _CAUTION) for line in cautions.inexact(report.get("inexact")))
    if "output" in report:
        yield from _output(report, source)
    if report.get("before_after") is not None:
        line = sentences.file_nodes(report["before_after"])
        yield _Line(line, spare=sentences.SPELLED not in line)


def _evidence(report: Mapping[str, Any]) -> Iterator[_Line]:
    """Yield what was proved and what was compared."""
    if "proof" in report:
        yield _Line(sentences.proved(report["proof"]))
    verification = report.get("verification", {})
    if "outputs" in verification:
        yield _Line(f"checked: {checked(verification)}")
        yield from map(_Line, check_limits(verification))
        yield from (_Line(caution, _CAUTION) for caution in cautions.of_check(verification))
    elif "proof" in report:
        yield _Line("not run: the result is proved, and was not compared (--check 0)")
    elif report.get("changed"):
        yield _Line("neither proved nor run (--no-check)")


def _output(report: Mapping[str, Any], source: Path | None) -> Iterator[_Line]:
    """Yield the location of the file, its requirements, and how to measure the gain."""
    written = report["output"]
    size = f"{written['bytes']:,} bytes{'' if report['changed'] else ', unchanged'}"
    *files, last = _files(written)
    yield _Line(words=("wrote", *files, f"{last},", size))
    if report["inspect"]["norms"] and report["changed"]:
        if written.get("advice"):
            yield _Line(written["advice"])
        yield from (_Line(f"note: {note}", spare=True) for note in written.get("notes", ()))
    if report["changed"] and source is not None and not _refused(report):
        command = (
            "next: onnxfold",
            "bench",
            *map(shlex.quote, (str(source), shown_path(written["path"]))),
        )
        yield _Line(words=command, joint=" \\")


def _refused(report: Mapping[str, Any]) -> bool:
    """Whether ONNX Runtime cannot load one of the two models, so that `bench` would refuse it."""
    counted = report.get("before_after")
    return counted is not None and bool(refusal_notes(counted))


def _files(written: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words on a written model: its path, and the data file, or the number of several."""
    files, shared = written.get("data_files", ()), written.get("shared_data", ())
    yield shown_path(written["path"])
    if written["data"]:
        yield from ("and", shown_path(written["data"]))
        if len(files) > 1:
            yield from f"(the first of {len(files)} data files)".split(" ")
    if shared:
        yield from ("which", "needs", shared[0])
        if len(shared) > 1:
            yield from f"and {len(shared) - 1} more".split(" ")
        yield from ("beside", "it")
