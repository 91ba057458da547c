"""onnxfold verify."""

from pathlib import Path
from typing import Annotated

import typer

from onnxfold.cli import options, terminal
from onnxfold.errors import VerificationError


def verify(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to check against it.")],
    samples: Annotated[int, typer.Option(metavar="N", help="Sets of inputs.")] = 2,
    rtol: options.RtolOption = None,
    atol: options.AtolOption = None,
    inputs: options.InputsOption = None,
    seed: options.SeedOption = 0,
    providers: options.ProvidersOption = None,
    memory: options.MemoryOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check that B computes what A computes, relative to the rounding error of A itself.

    Both run on seeded inputs and are compared with a float64 run of A. B passes when no output
    errs more than a small multiple of what A errs itself; exits 1 otherwise.
    """
    from onnxfold import api
    from onnxfold.report import cautions, printed

    with terminal.progress(context.obj, first, lines=not as_json) as progress:
        verification = api.verify(
            first,
            second,
            samples=samples,
            rtol=rtol,
            atol=atol,
            inputs=tuple(inputs or ()),
            seed=seed,
            providers=tuple(providers or ()),
            memory=memory,
            progress=progress,
        )
    if as_json:
        terminal.print_json(verification.to_json())
    elif context.obj is terminal.Verbosity.QUIET:
        terminal.warn(cautions.of_check(verification.to_json()))
    else:
        printed.print_verification(terminal.console(), verification.to_json())
    if not verification.passed:
        raise typer.Exit(VerificationError.exit_code)
