"""onnxfold measure and onnxfold plot."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import (
    JsonOption,
    OverwriteOption,
    ReportOption,
    with_options,
    written_file,
)
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import ModelError, UsageError
from onnxfold.fleet import models_of

_INTERRUPTED = 130


@with_options("providers", "memory")
def measure(
    context: typer.Context,
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN", help="The ONNX models, .onnx, or folders of them, one by one."
        ),
    ],
    *,
    chosen: dict[str, Any],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="A .npz, .npy, .txt, .jsonl, .parquet or .arrow file, a folder of one kind, or of "
            "images. **Without it inputs are made up**, as the check does.",
        ),
    ] = None,
    report: ReportOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the figures as SVG and PNG.")
    ] = None,
    rows: Annotated[int | None, typer.Option(metavar="N", help="At most N rows of data.")] = None,
    batch: Annotated[int, typer.Option(metavar="B", help="Rows that run together.")] = 8,
    length: Annotated[int, typer.Option(metavar="N", help="At most N tokens of a text.")] = 128,
    column: Annotated[
        str, typer.Option(metavar="NAME", help="The text in JSONL and tables.")
    ] = "text",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="tokenizer.json; beside the model or data when left out."
        ),
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The input that is 0 at padding; found when left out."),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Processes; the report is the same for any number.")
    ] = 1,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of each process.")] = 1,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count shards that cannot be read, and go on.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure by workers of a Ray cluster, HOST:PORT, whose nodes find DATA under its "
            "path; **local** starts one here.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            parser=written_file,
            metavar="FILE",
            help="Keep what is measured in FILE, and go on from there.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random vectors and of made-up inputs.")] = 0,
    as_json: JsonOption = False,
    force: OverwriteOption = False,
) -> None:
    """Measure the geometry of what every norm reads and writes, over data.

    For every row: its angle to the uniform vector 1 and to two random vectors, its length, its
    mean, its share of energy along 1, and by how much the norm would err without subtracting the
    mean. Only sums leave the model, so memory does not grow with the data.

    `onnxfold measure model.onnx --data texts.jsonl --report measured.html`

    `onnxfold measure small.onnx large.onnx --data texts.jsonl --report both.html` compares several
    models; a JSON report lists them under "models".
    """
    from onnxfold import api
    from onnxfold.geometry.reports import as_document, write_measurements

    terminal.check_reports(report, *sources, data, resume, force=force)
    _check_figures(plot, force=force)
    if plot is not None or any(path.suffix == ".html" for path in report or ()):
        from onnxfold.geometry.plots import demand_matplotlib

        demand_matplotlib()
    start = time.perf_counter()
    if data is None:
        terminal.tell(
            "no --data: the inputs are SYNTHETIC, so these numbers do not describe real data",
            err=True,
        )
    documents = []
    sources = [model for source in sources for model in models_of(source)]
    for number, source in enumerate(sources):
        kept = _kept(resume, number, len(sources))
        with (
            _interrupted_once(),
            terminal.progress(context.obj, source, lines=not as_json) as progress,
        ):
            document = api.measure(
                source,
                data,
                workers=workers,
                threads=threads,
                **chosen,
                skip_bad=skip_bad,
                resume=kept,
                ray=ray,
                progress=progress,
                batch=batch,
                rows=rows,
                length=length,
                column=column,
                tokenizer=tokenizer,
                mask=mask,
                seed=seed,
            )
        documents.append(document)
        if not as_json:
            _print(document, time.perf_counter() - start, context.obj)
        start = time.perf_counter()
        if not document["complete"]:
            break
    write_measurements(documents, report or [], plot)
    if as_json:
        terminal.print_json(as_document(documents))
    if not documents[-1]["complete"]:
        remedy = f"go on with --resume {resume}" if resume else "--resume FILE would keep it"
        terminal.tell(f"onnxfold: interrupted, measured in part; {remedy}", err=True)
        raise typer.Exit(_INTERRUPTED)


def _kept(resume: Path | None, number: int, count: int) -> Path | None:
    """Return the file that keeps the state of one of several models."""
    return resume if resume is None or count == 1 else resume.with_name(f"{resume.name}.{number}")


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Let an interrupt end the measurement, and ignore further ones while the result is saved."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler, and is interrupted
        return

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, usual)


_LEGEND = (
    "mean ± deviation over vectors; angle to 1: degrees from the vector of ones, 90 if the mean is "
    "0; share along 1: part of the energy that the mean has; error without mean: of an RMSNorm here"
)


def _print(document: dict[str, Any], seconds: float, verbosity: Verbosity) -> None:
    from onnxfold.geometry.page import norm_cells, summary
    from onnxfold.report.fitted_tables import print_table

    measured = ("vectors", "angle to 1 before", "after", "share along 1", "error without mean")
    console, full = terminal.console(verbosity), verbosity is Verbosity.VERBOSE
    rows = [
        (cells[0], f"{cells[1]} {cells[2]}", f"{norm['before']['norm']['count']:,}", *cells[3:])
        for norm, cells in zip(document["norms"], norm_cells(document), strict=True)
    ]
    if document["model"] is not None:
        console.print(document["model"], markup=False, highlight=False)
    print_table(console, ("norm", "is"), rows, measured, names=(0,), full=full)
    console.print(_LEGEND)
    rate = document["rows"] / seconds
    console.print(f"{summary(document)} ({seconds:.1f} s, {rate:,.1f} rows/s)", highlight=False)
    for norm in document["refused"]:
        console.print(f"not measured: {norm['name']}: {norm['reason']}", markup=False)
    cautions = [
        f"padding counts too: {norm['name']}" for norm in document["norms"] if norm["unmasked"]
    ]
    cautions += [f"left out: {reason}" for reason in document["bad_shards"]]
    if verbosity is Verbosity.QUIET:
        terminal.warn(cautions)
    for caution in cautions:
        console.print(caution, markup=False)


def plot(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Measurements, .json, or folders of them: of one model, of several, or of one at "
            "the steps of its training.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write the figures as SVG and PNG."),
    ] = None,
    report: ReportOption = None,
    force: OverwriteOption = False,
) -> None:
    """Draw what was measured: one model, several side by side, or a series over training.

    `onnxfold plot small.json large.json -o figures` compares models.

    `onnxfold plot angles --report training.html` draws a folder written by
    onnxfold.torch.AnglesCallback over the steps of training.
    """
    from onnxfold.geometry.plots import demand_matplotlib
    from onnxfold.geometry.reports import read_measurements, write_measurements

    terminal.check_reports(report, *files, force=force)
    _check_figures(output, force=force)
    if output is None and not report:
        raise UsageError("specify where to write the figures with -o DIR or --report FILE.html")
    demand_matplotlib()
    reports = read_measurements(files)
    write_measurements(reports, report or [], output)
    written = [str(path) for path in (*(report or []), output) if path is not None]
    terminal.console(context.obj).print(
        f"drew {len(reports)} measurement{'s' * (len(reports) > 1)}: {', '.join(written)}"
    )


def _check_figures(folder: Path | None, *, force: bool) -> None:
    """Fail before the work if figures could not be written into a folder at the end.

    Raises ModelError if they cannot be written, UsageError for a figure of the same name that
    onnxfold did not write, without `force`.
    """
    if folder is None:
        return
    from onnxfold import model_io
    from onnxfold.geometry.figures import file_names

    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ModelError(f"cannot write the figures into '{folder}': it is not a folder")
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not os.access(there, os.W_OK | os.X_OK):
        raise ModelError(f"cannot write the figures into '{folder}': no writable folder '{there}'")
    model_io.check_reports_replaceable((folder / name for name in file_names()), force=force)
