"""onnxfold plot."""

from pathlib import Path
from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import OverwriteOption, ReportOption
from onnxfold.errors import UsageError


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
    terminal.check_figures(output, force=force)
    if output is None and not report:
        raise UsageError("specify where to write the figures with -o DIR or --report FILE.html")
    demand_matplotlib()
    reports = read_measurements(files)
    write_measurements(reports, report or [], output)
    written = [str(path) for path in (*(report or []), output) if path is not None]
    terminal.console(context.obj).print(
        f"drew {len(reports)} measurement{'s' * (len(reports) > 1)}: {', '.join(written)}"
    )
