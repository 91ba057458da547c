"""onnxfold rotate."""

from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.optimize import destination
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError
from onnxfold.tuning.options import RotationOptions


@options.with_options(of=RotationOptions)
def rotate(
    context: typer.Context,
    model: options.Model,
    out: options.OutArgument = None,
    *,
    output: options.OutputOption = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="int8|int8-channel|int4",
            help="What OUT will be quantized to: **int8** and **int8-channel** by "
            "quantize_dynamic, **int4** by MatMulNBits in blocks of 32.",
        ),
    ],
    chosen: dict[str, Any],
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Turn the basis of residual streams and heads, so that int8 or int4 loses less.

    Outliers in few channels take most steps of an integer scale. An orthogonal matrix, moved into
    the weights before and after, spreads them over all channels, and no RMSNorm sees it: OUT is a
    float model that computes what IN does, with no more operators. LayerNorms are folded first, and
    gammas moved.

    The quantized IN and one quantized file for each rotation are compared with the float64 run of
    IN, on --data or on drawn inputs. The one with the least error is written, not quantized; where
    none errs at most 0.9 times as much as IN, OUT is IN.

    `onnxfold rotate model.onnx -o turned.onnx --to int8 --data samples.npz`
    """
    from onnxfold import api

    verbosity: Verbosity = context.obj
    target = destination(out, output, dry_run=False)
    if target is None:
        raise UsageError("specify the output path with -o OUT")
    terminal.check_reports(report, model, target, force=chosen["force"], kinds=(".json",))
    with terminal.progress(verbosity, model, target.parent, lines=not as_json):
        result = api.rotate(model, target, to=to, **chosen)
    from onnxfold.model_io import shown_path
    from onnxfold.report.document import write_report
    from onnxfold.report.printed import measured

    for path in report or ():
        write_report(path, result.report)
    if as_json:
        terminal.print_json(result.report)
    elif verbosity is not Verbosity.QUIET:
        for line in measured(result.report):
            terminal.tell(line)
        terminal.tell(f"wrote {shown_path(result.output)}")
