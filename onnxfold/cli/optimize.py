"""onnxfold optimize, of one model or of many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.guard import note_work
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import CommandInterruptedError, UsageError
from onnxfold.fleet import Errand, FleetRow, Work, check_threads, errands, spread
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
    from onnxfold.fleet import optimized_apart

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


@options.with_options(
    "target",
    "device",
    *options.FOLDED,
    *("scale_streams", "scale_margin", "rotate", "rotation_seed", "split_gamma", "drop_means"),
    *("data", "max_error", "dry_run", "share_weights", "force"),
)
def optimize(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IN",
            help="The ONNX model, .onnx, and where to write; with --output-dir models and folders "
            "of them.",
        ),
    ],
    *,
    output: options.OutputOption = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Optimize every IN, and every .onnx file under one that is a folder, into DIR.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --output-dir: models at once.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --output-dir: optimize on this Ray cluster, HOST:PORT, whose nodes find all "
            "files under their paths; **local** starts one.",
        ),
    ] = None,
    chosen: dict[str, Any],
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="What onnxfold measure wrote of IN: the report shows it with each norm.",
        ),
    ] = None,
) -> None:
    """Fold every LayerNorm that can exactly become an RMSNorm; prove, check and write the result.

    Nothing is written unless the proof and the check pass. OUT runs wherever IN does, unless
    --target is more specific; IN is never changed. Without OUT, model.onnx becomes
    model.folded.onnx.

    `onnxfold optimize model.onnx -o fast.onnx`

    `onnxfold optimize model.onnx -o fast.onnx --report report.html` keeps the details.

    `onnxfold optimize model.onnx --dry-run` shows the plan and writes nothing.

    `onnxfold optimize model.onnx -o fast.onnx --inputs ids:1,128 --inputs mask:mask.npy`
    checks on inputs of this shape and on your own data.

    `onnxfold optimize a.onnx models --output-dir folded --jobs 4` folds a.onnx and every model
    under the folder models, each in a separate process; a failure stops only its own model.
    """
    from onnxfold import api
    from onnxfold.report.document import provenance

    verbosity: Verbosity = context.obj
    dry_run, force = chosen["dry_run"], chosen["force"]
    if _are_many(paths, output, output_dir, dry_run=dry_run):
        if measured is not None:
            raise UsageError("--measured is about one model")
        optimize_many(
            context, [Path(path) for path in paths], output_dir, jobs, ray, report, as_json=as_json
        )
        return
    if ray is not None:
        raise UsageError("--ray is for several models, which --output-dir takes")
    model, output = _one(paths, output, dry_run=dry_run, force=force)
    terminal.check_reports(report, model, output, measured, force=force)
    told = {"run": provenance(model, options.given_options(context))} if report or as_json else {}
    if measured is not None:
        told |= _measurement(measured, told)
    folder = None if output is None else output.parent
    with terminal.progress(verbosity, model, folder, lines=not as_json) as progress:
        result = api.optimize(
            model,
            output,
            progress=progress,
            **chosen,
        )
    terminal.tell_result(result.report | told, report, verbosity, as_json=as_json, source=model)


def _measurement(path: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurement for a report; raises UsageError if no report is requested."""
    from onnxfold.geometry.reports import measurement_of

    if not told:
        raise UsageError("--measured is shown in a report; ask for one (--report FILE, or --json)")
    return {"measurement": measurement_of(path, told["run"]["input"]["sha256"])}


def _are_many(
    paths: list[str], output: Path | None, output_dir: Path | None, *, dry_run: bool
) -> bool:
    """Whether several models, or a folder, are optimized; raises UsageError for a mixture."""
    if output_dir is not None:
        if output is not None:
            raise UsageError("-o names one file and --output-dir a folder; leave one out")
        return True
    folders = [path for path in paths if os.path.isdir(path)]
    if len(paths) < 3 and not (folders and (folders[0] == paths[0])):
        return False
    if not dry_run:
        what = f"'{folders[0]}' is a folder" if folders else f"{len(paths)} paths are given"
        raise UsageError(f"{what}: name a folder for the results (--output-dir DIR)")
    return True


def _one(
    paths: list[str], output: Path | None, *, dry_run: bool, force: bool
) -> tuple[Path, Path | None]:
    """Return the model and its destination: OUT, or a name derived from the model's."""
    model = Path(paths[0])
    out = options.written_file(paths[1]) if len(paths) > 1 else None
    if out is None and output is None:
        return model, None if dry_run else model.with_name(f"{model.stem}.folded.onnx")
    if out is not None and output is None and not dry_run:
        from onnxfold import model_io

        try:
            model_io.check_replaceable(out, source=model, force=force)
        except UsageError as error:
            raise UsageError(f"{error}; --output-dir DIR takes several models") from error
    return model, destination_or_plan(out, output, dry_run=dry_run)


def destination(out: Path | None, output: Path | None, otherwise: str = "") -> Path:
    """Return where to write; raises UsageError if OUT is given twice, or is missing.

    ``otherwise``: what a command may be given in place of OUT.
    """
    if out is not None and output is not None:
        raise UsageError(f"OUT is given twice, as '{out}' and as '-o {output}'")
    chosen = out or output
    if chosen is None:
        raise UsageError(f"specify the output path with -o OUT{otherwise}")
    if chosen == Path("-"):
        raise UsageError("a model is written to a file, not to standard output; give -o OUT")
    return chosen


def destination_or_plan(out: Path | None, output: Path | None, *, dry_run: bool) -> Path | None:
    """Return where to write, None for a plan alone; raises UsageError as `destination` does."""
    if dry_run and out is None and output is None:
        return None
    return destination(out, output, ", or use --dry-run")


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
