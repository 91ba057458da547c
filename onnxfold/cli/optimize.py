"""onnxfold optimize."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError
from onnxfold.options import Device, Target


@options.with_fold_options
def optimize(
    context: typer.Context,
    model: options.Model,
    out: options.OutArgument = None,
    *,
    output: options.OutputOption = None,
    target: options.TargetOption = Target.ONNX,
    device: options.DeviceOption = Device.CPU,
    fold: options.FoldOptions,
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="What onnxfold measure wrote of IN: the report shows it with each norm.",
        ),
    ] = None,
    dry_run: options.DryRunOption = False,
    share_weights: Annotated[
        bool,
        typer.Option(
            "--share-weights",
            help="Write changed weights only; for the others OUT, which must lie in the folder of "
            "IN, refers to IN's data files.",
        ),
    ] = False,
    force: options.ForceOption = False,
) -> None:
    """Fold every LayerNorm that can exactly become an RMSNorm; prove, check and write the result.

    Nothing is written unless the proof and the check pass. OUT runs wherever IN does, unless
    --target says otherwise; IN is never changed.

    `onnxfold optimize model.onnx -o fast.onnx`

    `onnxfold optimize model.onnx -o fast.onnx --report report.html` keeps the details.

    `onnxfold optimize model.onnx --dry-run` shows the plan and writes nothing.

    `onnxfold optimize model.onnx -o fast.onnx --inputs ids:1,128 --inputs mask:mask.npy`
    checks on inputs of this shape and on your own data.
    """
    from onnxfold import api
    from onnxfold.report.provenance import provenance

    verbosity: Verbosity = context.obj
    output = destination(out, output, dry_run=dry_run)
    terminal.check_reports(report, model, output, measured)
    told = {"run": provenance(model, options.given_options(context))} if report or as_json else {}
    if measured is not None:
        told |= _measurement(measured, told)
    folder = None if output is None else output.parent
    with terminal.progress(verbosity, model, folder, lines=not as_json) as progress:
        result = api.optimize(
            model,
            output,
            progress=progress,
            target=target,
            device=device,
            dry_run=dry_run,
            share_weights=share_weights,
            force=force,
            **fold.keywords(),
        )
    terminal.tell_result(result.report | told, report, verbosity, as_json=as_json, source=model)


def _measurement(path: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurement for a report; raises UsageError where there is no report for it."""
    from onnxfold.geometry.reports import measurement_of

    if not told:
        raise UsageError("--measured is shown in a report; ask for one (--report FILE, or --json)")
    return {"measurement": measurement_of(path, told["run"]["input"]["sha256"])}


def destination(out: Path | None, output: Path | None, *, dry_run: bool) -> Path | None:
    """Return where to write; raises UsageError where it is told twice, or not at all."""
    if out is not None and output is not None:
        raise UsageError(f"OUT is given twice, as '{out}' and as '-o {output}'")
    chosen = out or output
    if chosen is None and not dry_run:
        raise UsageError("say where to write the result (-o OUT), or use --dry-run")
    if chosen == Path("-"):
        raise UsageError("a model is written to a file, not to standard output; give -o OUT")
    return chosen
