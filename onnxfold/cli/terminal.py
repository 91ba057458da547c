"""What the commands say, and how much of it: verbosity, the console, progress, JSON, reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onnxfold.cli.guard import note_stage, note_work
from onnxfold.errors import ModelError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Verbosity", "check_report", "console", "print_json", "progress"]

_PIPED_WIDTH = 120


class Verbosity(StrEnum):
    """How much is said on standard error."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


def check_report(report: Path | None) -> None:
    """Fail before the work where its report could not be written at the end.

    Raises UsageError for another kind of file, ModelError where the folder takes none.
    """
    if report is not None and report.suffix not in (".json", ".html"):
        raise UsageError(f"--report {report}: the name must end in .json or .html")
    if report is not None and not os.access(report.parent, os.W_OK | os.X_OK):
        raise ModelError(
            f"cannot write the report '{report}': no writable folder '{report.parent}'"
        )


def print_json(document: dict[str, Any]) -> None:
    """Print a document for machines on standard output."""
    import json

    typer.echo(json.dumps(document, indent=2))


def console() -> Console:
    """Return a console on standard output, as wide as the terminal or wide enough for a table."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(width=width, highlight=False)


@contextmanager
def progress(
    verbosity: Verbosity, model: Path, folder: Path | None = None
) -> Iterator[Callable[[str, float], None]]:
    """Note what is done, to `model` and into `folder`, and show a bar for it on a terminal."""
    note_work(model, folder)

    def note(stage: str, done: float) -> None:
        note_stage(stage, ended=done >= 1.0)

    if verbosity is Verbosity.QUIET or not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: float) -> None:
            note(stage, done)
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=done)

        yield show
