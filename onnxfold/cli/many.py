"""Commands on many models: a line for each as it is done, one report, the worst exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.guard import note_work
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import CommandInterruptedError, UsageError
from onnxfold.fleet import Errand, FleetRow, Work, spread


def check_many_reports(reports: Sequence[Path] | None) -> None:
    """Raise UsageError for a report on many models that is not JSON: an HTML page covers one."""
    if any(path.suffix != ".json" for path in reports or ()):
        raise UsageError("--report: the report on several models is a .json file")


def run_many(
    work: Work,
    todo: Sequence[Errand],
    gained: Callable[[Mapping[str, Any]], str],
    *,
    lines: bool,
    jobs: int = 1,
    ray: str | None = None,
    cpus: int = 1,
) -> list[FleetRow]:
    """Do the work on every model and return the rows in the order of the models.

    ``gained`` describes in a line what was found about one; ``lines``: whether to print it. Raises
    CommandInterruptedError instead of KeyboardInterrupt.
    """
    rows: list[FleetRow] = []
    note_work(todo[0].model, todo[0].output and todo[0].output.parent)
    try:
        for row in spread(work, todo, jobs=jobs, ray=ray, cpus=cpus):
            rows.append(row)
            if lines:
                what = f"{row.model}: {gained(row.found)}" if row.error is None else row.failure
                terminal.tell(f"{len(rows)} of {len(todo)}: {'failed: ' * bool(row.error)}{what}")
    except KeyboardInterrupt as error:
        done = f"{len(rows)} of {len(todo)} models were done"
        raise CommandInterruptedError(done) from error
    places = {str(errand.model): place for place, errand in enumerate(todo)}
    return sorted(rows, key=lambda row: places[row.model])


def tell_many(rows: Sequence[FleetRow], reports: Sequence[Path] | None, *, as_json: bool) -> None:
    """Write and print the report on all models, and exit as the worst of them would have."""
    from onnxfold.report.document import write_report

    document = {"schema": 1, "models": [row.to_json() for row in rows]}
    for path in reports or ():
        write_report(path, document)
    if as_json:
        terminal.print_json(document)
    worst = max(row.exit_code for row in rows)
    if worst:
        raise typer.Exit(worst)


def shows_lines(verbosity: Verbosity, *, as_json: bool) -> bool:
    """Whether lines for people are printed."""
    return verbosity is not Verbosity.QUIET and not as_json
