"""onnxfold diff."""

from pathlib import Path
from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption
from onnxfold.cli.terminal import Verbosity

_MARKS = {"removed": "-", "added": "+", "changed": "~"}


def diff(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="A model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to set beside it.")],
    no_sessions: Annotated[
        bool,
        typer.Option("--no-sessions", help="Leave out what ONNX Runtime makes of the models."),
    ] = False,
    nodes: Annotated[
        bool,
        typer.Option("--nodes", help="List the nodes and weights that are gone, new or changed."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how two models differ: operators, parameters, bytes, and what their norms cost.

    `onnxfold diff model.onnx fast.onnx` prints what differs; with -v also what is the same.

    `onnxfold diff model.onnx fast.onnx --nodes` lists every node and weight that differs.
    """
    from onnxfold import api
    from onnxfold.report import printed

    with terminal.progress(context.obj, first, lines=False):
        document = api.diff(first, second, sessions=not no_sessions, nodes=nodes)
    if as_json:
        terminal.print_json(document)
    else:
        console = terminal.console(context.obj)
        printed.print_figures(console, document, every=context.obj is Verbosity.VERBOSE)
        for row in document.get("changes", ()):
            line = f"{_MARKS[row['change']]} {row['kind']} {row['name']}: {'; '.join(row['what'])}"
            console.print(line)
