"""onnxfold convert."""

from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.optimize import destination
from onnxfold.cli.terminal import Verbosity
from onnxfold.options import Conversion, WrittenForm, conversion_named


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
    output = destination(out, output, dry_run=chosen["dry_run"])
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
