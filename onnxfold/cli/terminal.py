"""Output of the commands: verbosity, the console, progress, JSON, reports."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onnxfold.cli.guard import note_stage, note_work
from onnxfold.errors import ModelError, UsageError, printable

if TYPE_CHECKING:
    from rich.console import Console

_UNBROKEN_WIDTH = 10_000  # readers of a pipe wrap lines themselves, without cutting names
# The stages in words.
_DOINGS = {
    "load": "reading the model",
    "analyse": "finding norms and planning",
    "rewrite": "rewriting the graph",
    "prove": "proving the result from its weights",
    "save": "writing the weights",
    "verify": "comparing with a float64 run",
    "count": "counting operators",
    "sessions": "counting what sessions execute",
    "time": "timing the longer session",
    "measure": "measuring what norms read and write",
    "bench": "timing the models in turns",
}
_TURNS = frozenset({"analyse", "rewrite", "prove", "count"})


Listener = Callable[[str, float], None]  # stage, fraction done


class Verbosity(StrEnum):
    """How much is written to standard error."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


def chosen_verbosity(*, verbose: bool, quiet: bool) -> Verbosity:
    """Return the verbosity; raises UsageError if both options are set."""
    if verbose and quiet:
        raise UsageError("--verbose and --quiet exclude each other")
    return Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


def prepare_streams() -> None:
    """Support standard streams that are closed, or whose encoding lacks a character."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # it stays to the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def check_reports(
    reports: Sequence[Path] | None,
    *others: Path | None,
    force: bool,
    kinds: Sequence[str] = (".json", ".html"),
) -> None:
    """Fail before the work if its reports could not be written at the end.

    Raises UsageError for another kind of file, for one of the `others`, which the command reads
    or writes, and for a file that onnxfold did not write, without `force`; ModelError if the folder
    is not writable.
    """
    from onnxfold import model_io

    for report in reports or ():
        if report.suffix not in kinds:
            raise UsageError(f"--report {report}: the name must end in {' or '.join(kinds)}")
        if any(other is not None and _same_file(report, other) for other in others):
            raise UsageError(f"--report {report}: the command reads or writes it; name another")
        folder = os.path.dirname(os.path.realpath(report))  # a report is written through a link
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ModelError(f"cannot write the report '{report}': no writable folder '{folder}'")
        if os.path.exists(report) and not os.access(report, os.W_OK):
            raise ModelError(f"cannot write the report '{report}': the file is not writable")
    model_io.check_reports_replaceable(reports or (), force=force)


def _same_file(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def is_watched() -> bool:
    """Whether standard error is a terminal, on which bars are drawn."""
    return sys.stderr.isatty()


def say(text: str, *, err: bool = False) -> None:
    """Print lines of text, with control characters made visible."""
    typer.echo(printable(text, also="\n"), err=err)


def tell(sentence: str, *, err: bool = False) -> None:
    """Print a sentence; on a terminal its lines end between words."""
    from onnxfold.report.fitted_tables import lines_of

    sentence = printable(sentence)
    if (sys.stderr if err else sys.stdout).isatty():
        sentence = "\n".join(lines_of(sentence.split(" "), shutil.get_terminal_size().columns))
    typer.echo(sentence, err=err)


def warn(cautions: Iterable[str]) -> None:
    """Print on standard error what even a quiet command must report."""
    for sentence in cautions:
        tell(f"onnxfold: {sentence}", err=True)


def print_json(document: dict[str, Any]) -> None:
    """Print a document for machines on standard output."""
    import json

    from onnxfold.model_io import signed

    say(json.dumps(signed(document), indent=2))


def console(verbosity: Verbosity) -> Console:
    """Return a console on standard output: as wide as the terminal or COLUMNS, otherwise unbroken.

    A quiet one prints nothing; only machine-readable output, warnings and errors are then printed.
    """
    from onnxfold.cli.plain_console import PlainConsole

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNBROKEN_WIDTH
    quiet, full = (verbosity is kind for kind in (Verbosity.QUIET, Verbosity.VERBOSE))
    return PlainConsole(width=width, quiet=quiet, full=full)


def tell_result(
    report: dict[str, Any],
    files: Sequence[Path] | None,
    verbosity: Verbosity,
    *,
    as_json: bool,
    source: Path,
) -> None:
    """Write the report of a command to its files, and print it as JSON or for people."""
    from onnxfold.report import cautions
    from onnxfold.report.document import write_report
    from onnxfold.report.printed_result import print_result

    for path in files or ():
        write_report(path, report)
    if as_json:
        print_json(report)
    elif verbosity is Verbosity.QUIET:
        warn(cautions.of_result(report))
    else:
        verbose = verbosity is Verbosity.VERBOSE
        print_result(console(verbosity), report, verbose=verbose, source=source)


@contextmanager
def progress(
    verbosity: Verbosity, model: Path, folder: Path | None = None, *, lines: bool = True
) -> Iterator[Listener]:
    """Record progress on `model` into `folder`, and show it.

    On a terminal it is a bar; otherwise, or if verbose, one of the ``lines`` on standard output per
    stage, so that standard error contains only errors.
    """
    note_work(model, folder)

    def note(stage: str, done: float) -> None:
        note_stage(stage, ended=done >= 1.0)

    listeners: list[Listener] = [note]

    def listen(stage: str, done: float) -> None:
        for listener in listeners:
            listener(stage, done)

    with ExitStack() as shown:
        if verbosity is not Verbosity.QUIET:
            watched = is_watched()
            if watched:
                listeners.append(shown.enter_context(_bars()))
            if lines and (not watched or verbosity is Verbosity.VERBOSE):
                listeners.append(shown.enter_context(_stage_lines()))
        yield listen


@contextmanager
def _stage_lines() -> Iterator[Listener]:
    """Write a line for each finished stage, with its seconds, for logs.

    The passes share the stages of :data:`_TURNS`, which end together. A repeated stage belongs to
    another attempt, without what failed in the first; its line mentions this.
    """
    spent: dict[str, float] = {}
    told: set[str] = set()
    last = time.perf_counter()

    def tell() -> None:
        for stage, seconds in spent.items():
            again = "again: " if stage in told else ""
            say(f"{again}{_DOINGS.get(stage, stage)}: {seconds:.1f} s")
        told.update(spent)
        spent.clear()

    def show(stage: str, done: float) -> None:
        nonlocal last
        now = time.perf_counter()
        if stage not in spent and not _TURNS.issuperset({stage, *spent}):
            tell()
        spent[stage] = spent.get(stage, 0.0) + (now - last if done > 0.0 else 0.0)
        last = now

    yield show
    tell()


@contextmanager
def _bars() -> Iterator[Listener]:
    """Show a bar with percent and time left for each stage; it pulses if these are unknown."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<36}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(_DOINGS.get(stage, stage), total=None)
            if done > 0.0:
                bars.update(tasks[stage], total=1.0, completed=done)

        yield show
