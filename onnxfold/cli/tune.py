"""onnxfold tune."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.guard import note_work
from onnxfold.cli.optimize import check_many_reports, destination, run_many, shows_lines, tell_many
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError
from onnxfold.fleet import errands
from onnxfold.tuning.options import TuneOptions, tune_options

if TYPE_CHECKING:
    from onnxfold.tuning.search import Listener, SearchProgress
    from onnxfold.tuning.tune_result import TuneResult


@options.with_options(of=TuneOptions)
def tune(
    context: typer.Context,
    model: options.Model,
    out: options.OutArgument = None,
    *,
    output: options.OutputOption = None,
    chosen: dict[str, Any],
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With a folder as IN: tune its models on this Ray cluster; **local** starts one.",
        ),
    ] = None,
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Try chains of tools, check each result, and write the fastest correct one.

    The steps are ONNX Runtime's transformers optimizer, onnxscript's fusions, onnxslim, onnxfold's
    own fold, quantizers and the float16 converter, each in a separate process. Every candidate is
    compared with a float64 run of IN, and the correct ones are timed in turns. IN is a candidate
    too: if nothing is faster, OUT is IN. A tool's failure is a row of the table.

    `onnxfold tune model.onnx -o fast.onnx` keeps the precision.

    `onnxfold tune model.onnx -o fast.onnx --precision fp32 --precision int8 --data inputs.npz`
    also tries int8, checks it on your data, and calibrates int8-static on it.

    `onnxfold tune model.onnx -o fast.onnx --device cuda --precision fp16 --inputs ids:8,512`
    times float16 on a GPU, at this shape.

    `onnxfold tune models -o tuned --ray head:10001` tunes every model of a folder on a cluster.
    """
    verbosity: Verbosity = context.obj
    target = destination(out, output)
    terminal.check_reports(report, model, target, force=chosen["force"])
    if model.is_dir():
        _folder(model, target, chosen, ray, verbosity, report, as_json=as_json)
    elif ray is not None:
        raise UsageError("--ray is for a folder of models: the candidates of one are timed here")
    else:
        _one(model, target, chosen, verbosity, report, as_json=as_json)


def _one(
    model: Path,
    target: Path,
    given: dict[str, Any],
    verbosity: Verbosity,
    report: list[Path] | None,
    *,
    as_json: bool,
) -> None:
    from onnxfold import api
    from onnxfold.tuning.tune_page import print_candidates, print_conclusion
    from onnxfold.tuning.tuner import TuneFailed

    failure: TuneFailed | None = None
    with _shown(verbosity, model, target.parent, lines=not as_json) as listener:
        try:
            result = api.tune(model, target, progress=listener, **given)
        except TuneFailed as error:
            result, failure = error.result, error
    _write_reports(result, report)
    if as_json:
        terminal.print_json(result.report)
    else:
        console = terminal.console(verbosity)
        print_candidates(console, result.report, verbose=verbosity is Verbosity.VERBOSE)
        if result.output is not None:
            print_conclusion(console, result.report, model, result.output)
    if failure is not None:
        raise failure


def _folder(
    folder: Path,
    target: Path,
    given: dict[str, Any],
    ray: str | None,
    verbosity: Verbosity,
    report: list[Path] | None,
    *,
    as_json: bool,
) -> None:
    """Tune the models of a folder; the exit code is the worst model's."""
    from onnxfold.tuning.tuner import tuned

    check_many_reports(report)
    wanted = tune_options(**given)
    rows = run_many(
        partial(tuned, wanted),
        errands([folder], target),
        lambda found: f"{found['winner']}, {found['ratio'] or 1.0:.2f} times as fast",
        lines=shows_lines(verbosity, as_json=as_json),
        ray=ray,
        cpus=wanted.threads,
    )
    tell_many(rows, report, as_json=as_json)


def _write_reports(result: TuneResult, paths: list[Path] | None) -> None:
    from onnxfold import model_io
    from onnxfold.tuning.tune_page import page

    for path in paths or ():
        if path.suffix == ".json":
            model_io.write_json(path, result.report)
        else:
            model_io.write_text(path, page(result.report))


@contextmanager
def _shown(
    verbosity: Verbosity, model: Path, folder: Path, *, lines: bool
) -> Iterator[Listener | None]:
    """Show the progress of a run: a bar on a terminal, otherwise a line for each candidate."""
    note_work(model, folder)
    if verbosity is Verbosity.QUIET:
        yield None
    elif terminal.is_watched():
        with _bar() as show:
            yield show
    else:
        yield _line if lines else None


def _line(progress: SearchProgress) -> None:
    terminal.tell(
        f"{progress.done} of {progress.total}, at most {progress.seconds_left:.0f} s left: "
        f"{progress.doing}{_best_so_far(progress)}"
    )


def _best_so_far(progress: SearchProgress) -> str:
    best = progress.best
    if best is None or best.ratio is None:
        return ""
    return f"; best so far {best.ratio:.2f} times as fast: {best.name}"


@contextmanager
def _bar() -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        MofNCompleteColumn(),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(progress: SearchProgress) -> None:
            text = f"{progress.doing}{_best_so_far(progress)}".replace("[", r"\[")
            bars.update(task, completed=progress.done, total=progress.total, description=text)

        yield show
