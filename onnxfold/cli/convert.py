"""onnxfold convert and onnxfold rotate: other forms of norms, another basis of streams."""

from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.optimize import destination, destination_or_plan
from onnxfold.cli.terminal import Verbosity
from onnxfold.options import Conversion, WrittenForm, conversion_named
from onnxfold.tuning.options import RotationOptions


@options.with_options(
    *("shift", "multiple_of", "change_readers", "target"), *options.CHECKED, "dry_run", "force"
)
def convert(
    context: typer.Context,
    model: options.Model,
    out: options.OutArgument = None,
    *,
    to: Annotated[
        Conversion,
        typer.Option(
            parser=conversion_named,
            metavar="FORM",
            help="**rms**: LayerNorm to RMSNorm, over weights that are centered in the file; "
            "**crms**: those streams stored without their last channel, and CRMSNorm; "
            "**layer**: RMSNorm to LayerNorm where the stream has mean 0 by its weights.",
        ),
    ],
    output: options.OutputOption = None,
    norm_form: Annotated[
        WrittenForm,
        typer.Option(
            metavar="FORM", help="With --to rms: as of `onnxfold optimize`, but for **layer**."
        ),
    ] = WrittenForm.AUTO,
    chosen: dict[str, Any],
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Change only the form of the norms: LayerNorm, RMSNorm or CRMSNorm, in either direction.

    A LayerNorm of a vector of mean 0 **is** an RMSNorm: LN(x) = RMS(x - mean(x)). Therefore:

    --to rms removes the means from the weights and biases that write into the stream; every
    downstream LayerNorm becomes an RMSNorm. `onnxfold optimize` does that too, and moves gamma,
    beta and scales as well.

    --to crms goes further: a vector of mean 0 is known without its last channel, which is minus the
    sum of the others. Weights that write into the stream lose their last column, and CRMSNorm
    restores the channel. It saves memory, one channel of d; if d is aligned and d - 1 is not, it
    may cost time: measure it (`onnxfold bench`), or use --multiple-of. A stream that is an output,
    or that another operator reads in full, stays, with the reason.

    --change-readers goes further: norms read only by linear layers write d - 1 channels too.

    --to rms and --to layer restore the channel of such a stream.

    --to layer is the reverse, for runtimes that are fast at LayerNormalization and lack RMSNorm. It
    converts the RMSNorms whose input is proved to have mean 0, down to the stored weights. A model
    that was trained with RMSNorm (Llama) has a mean in its stream: every norm is refused with the
    weight at fault, and nothing changes.

    `onnxfold convert gpt2.onnx -o gpt2-rms.onnx --to rms`

    `onnxfold convert gpt2.onnx -o gpt2-crms.onnx --to crms`

    `onnxfold convert gpt2-rms.onnx -o gpt2-ln.onnx --to layer`

    `onnxfold convert gpt2-rms.onnx -o gpt2-ln.onnx --to layer --shift 1` gives the weights means
    again, which LayerNorms ignore.

    `onnxfold convert llama.onnx --to layer --dry-run -v` shows every norm and why it stays.
    """
    from onnxfold import api

    verbosity: Verbosity = context.obj
    output = destination_or_plan(out, output, dry_run=chosen["dry_run"])
    terminal.check_reports(report, model, output, force=chosen["force"])
    folder = None if output is None else output.parent
    with terminal.progress(verbosity, model, folder, lines=not as_json) as progress:
        result = api.convert(
            model,
            output,
            to=to,
            norm_form=norm_form,
            progress=progress,
            **chosen,
        )
    terminal.tell_result(result.report, report, verbosity, as_json=as_json, source=model)


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
    target = destination(out, output)
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
