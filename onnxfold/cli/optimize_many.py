"""onnxfold optimize on many models: each is a command of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.many import check_many_reports, run_many, shows_lines, tell_many
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError
from onnxfold.fleet import check_threads, errands

# Options of this command that are not passed to the command for each model.
_OURS = frozenset(
    {"paths", "output", "output_dir", "jobs", "ray", "report", "as_json", "verbose", "quiet"}
)


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
    from onnxfold.report.printed_many import print_many

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
