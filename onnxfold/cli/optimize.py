"""onnxfold optimize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import FoldOptions, Model, ReportOption, with_fold_options
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError

__all__ = ["optimize"]


@with_fold_options
def optimize(
    context: typer.Context,
    model: Model,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where to write.")
    ] = None,
    fold: FoldOptions,
    report: ReportOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and print, write nothing.")
    ] = False,
    share_weights: Annotated[
        bool,
        typer.Option(
            "--share-weights",
            help="Write changed weights only; for the others OUT, which must lie in the folder of "
            "IN, refers to IN's data files.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Allow OUT to replace IN.")] = False,
) -> None:
    """Fold every LayerNorm that can exactly become an RMSNorm; prove, check and write the result.

    Nothing is written unless the proof and the check pass. OUT runs in any ONNX runtime; IN is
    never changed.

    `onnxfold optimize model.onnx -o fast.onnx`

    `onnxfold optimize model.onnx -o fast.onnx --report report.html` keeps the details.

    `onnxfold optimize model.onnx --dry-run` shows the plan and writes nothing.

    `onnxfold optimize model.onnx -o fast.onnx --inputs ids:1,128 --inputs mask:mask.npy`
    checks on inputs of this shape and on your own data.
    """
    from onnxfold import api
    from onnxfold.report import document as reports

    verbosity: Verbosity = context.obj
    terminal.check_report(report)
    if output is None and not dry_run:
        raise UsageError("say where to write the result (-o OUT), or use --dry-run")
    with terminal.progress(verbosity, model, output and output.parent) as progress:
        result = api.optimize(
            model,
            output,
            progress=progress,
            dry_run=dry_run,
            share_weights=share_weights,
            force=force,
            **fold.keywords(),
        )
    if report is not None:
        reports.write_report(report, result.report)
    if verbosity is not Verbosity.QUIET:
        reports.print_result(
            terminal.console(), result.report, verbose=verbosity is Verbosity.VERBOSE
        )
