"""onnxfold diff."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption
from onnxfold.cli.terminal import Verbosity

__all__ = ["diff"]


def diff(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="A model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to set beside it.")],
    no_sessions: Annotated[
        bool,
        typer.Option("--no-sessions", help="Leave out what ONNX Runtime makes of the models."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how two models differ: operators, parameters, bytes, and what their norms cost.

    `onnxfold diff model.onnx fast.onnx` prints what differs; with -v also what is the same.
    """
    from onnxfold import api
    from onnxfold.report import text

    with terminal.progress(context.obj, first, lines=False):
        document = api.diff(first, second, sessions=not no_sessions)
    if as_json:
        terminal.print_json(document)
    else:
        every = context.obj is Verbosity.VERBOSE
        text.print_figures(terminal.console(), document, every=every)
