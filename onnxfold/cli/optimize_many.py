"""onnxfold optimize on many models: each is a command of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.many import check_many_reports, run_many, shows_lines, tell_many
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError
from onnxfold.fleet import FleetRow, check_threads, errands
from onnxfold.report.fitted_tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

# Options of this command that are not passed to the command for each model.
_OURS = frozenset(
    {"paths", "output", "output_dir", "jobs", "ray", "report", "as_json", "verbose", "quiet"}
)
_NONE = "-"


def optimize_many(
    context: typer.Context,
    given: Sequence[Path],
    folder: Path | None,
    jobs: int,
    ray: str | None,
    reports: Sequence[Path] | None,
    *,
    as_json: bool,
) -> None:
    """Optimize models and the models of folders into a folder; print a table at the end."""
    verbosity: Verbosity = context.obj
    if ray is not None and jobs > 1:
        raise UsageError("--jobs is for this machine and --ray for a cluster; leave one out")
    check_threads("--jobs", jobs)
    check_many_reports(reports)
    terminal.check_reports(reports, *given, folder, force=context.params["force"])
    todo = errands(given, None if context.params["dry_run"] else folder)
    work = partial(_optimized, options.words_of(context, without=_OURS))
    shown = shows_lines(verbosity, as_json=as_json)
    rows = run_many(work, todo, _gained, lines=shown, jobs=jobs, ray=ray)
    if not as_json:
        print_many(
            terminal.console(verbosity),
            rows,
            full=verbosity is Verbosity.VERBOSE,
            dry_run=context.params["dry_run"],
        )
    tell_many(rows, reports, as_json=as_json)


def _optimized(words: Sequence[str], model: Path, output: Path | None) -> dict[str, Any]:
    from onnxfold.pipeline.apart import optimized_apart

    report, warnings = optimized_apart(model, output, words)
    return {"report": report, "warnings": warnings}


def _gained(found: Mapping[str, Any]) -> str:
    from onnxfold.report.sentences import totals

    return totals(found["report"]["inspect"]["summary"])


def print_many(console: Console, rows: Sequence[FleetRow], *, full: bool, dry_run: bool) -> None:
    """Print a row for each model, the reasons of failures, and the totals."""
    results = [_result(row, dry_run=dry_run) for row in rows]
    cells = [
        (row.model, *_counts(row.found.get("report", {})), _styled(result))
        for row, result in zip(rows, results, strict=True)
    ]
    headings = ("model", "LayerNorms fold", "session nodes", "result")
    print_table(console, headings, cells, names=(0,), full=full)
    for row in rows:
        if row.failure is not None:
            console.print(f"failed: {row.failure}", style="red")
        for warning in row.found.get("warnings", ()):
            console.print(f"{row.model}: {warning}", style="yellow")
    counted = ", ".join(f"{number} {result}" for result, number in Counter(results).items())
    console.print(f"{len(rows)} model{'s' * (len(rows) != 1)}: {counted}")


def _result(row: FleetRow, *, dry_run: bool) -> str:
    if row.error is not None:
        return "failed"
    if dry_run:
        return "planned"
    return "written" if row.found["report"]["changed"] else "unchanged"


def _styled(result: str) -> Any:
    from rich.text import Text

    return Text(result, {"failed": "bold red", "written": "green"}.get(result, ""))


def _counts(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return how many norms fold, and what a session executes before and after."""
    if not report:
        return _NONE, _NONE
    summary = report["inspect"]["summary"]
    folds = f"{summary['folded'] - summary.get('folds_of_others', 0)} of {summary['layer_norms']}"
    sides = [report.get("before_after", {}).get(side, {}) for side in ("before", "after")]
    counts = [side.get("session_operators") for side in sides]
    if None in counts:
        return folds, _NONE
    return folds, " -> ".join(f"{sum(each.values()):,}" for each in counts)
