"""onnxfold verify."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.errors import VerificationError
from onnxfold.tuning.options import TuneOptions


@options.with_options("rtol", "atol", "inputs", "seed", "providers", "memory")
def verify(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to check against it.")],
    *,
    metric: Annotated[list[str] | None, options.like(TuneOptions, "metric")] = None,
    max_error: Annotated[list[float] | None, options.like(TuneOptions, "max_error")] = None,
    data: Annotated[Path | None, options.like(TuneOptions, "data")] = None,
    rows: Annotated[
        int | None, typer.Option(metavar="N", help="At most N rows of data: 32 when left out.")
    ] = None,
    blame: Annotated[
        bool, typer.Option("--blame", help="Name the nodes at fault where B fails.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Sets of drawn inputs: 2, or none with --metric and --data."
        ),
    ] = None,
    chosen: dict[str, Any],
    as_json: options.JsonOption = False,
) -> None:
    """Check that B computes what A computes, relative to the rounding error of A itself.

    Both run on seeded inputs and are compared with a float64 run of A. B passes if no output errs
    more than a small multiple of what A errs itself, or with --metric, one or several, if no error
    exceeds its budget; otherwise it exits with 1.

    `onnxfold verify model.onnx int8.onnx --metric cosine --data rows.npz --blame`
    """
    from onnxfold import api
    from onnxfold.report import cautions, printed

    with terminal.progress(context.obj, first, lines=not as_json) as progress:
        verification = api.verify(
            first,
            second,
            metric=tuple(metric or ()),
            max_error=tuple(max_error or ()),
            data=data,
            rows=rows,
            blame=blame,
            samples=samples,
            **chosen,
            progress=progress,
        )
    if as_json:
        terminal.print_json(verification.to_json())
    elif context.obj is terminal.Verbosity.QUIET:
        terminal.warn(verification.notes if metric else cautions.of_check(verification.to_json()))
    else:
        shown = printed.print_budget_verification if metric else printed.print_verification
        shown(terminal.console(context.obj), verification.to_json())
    if not verification.passed:
        raise typer.Exit(VerificationError.exit_code)
