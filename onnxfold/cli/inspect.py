"""onnxfold inspect."""

from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.terminal import Verbosity


@options.with_options(
    *("target", "allow_split", "exclude", "fold", "fuse_affine", "defer", "defer_means")
)
def inspect(
    context: typer.Context,
    model: options.Model,
    *,
    as_json: options.JsonOption = False,
    chosen: dict[str, Any],
    nodes: Annotated[
        bool,
        typer.Option("--nodes", help="List every node with its inputs, outputs, types and shapes."),
    ] = False,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Count too what Algorithm 1 of the CBWC paper marks, with centered embeddings, "
            "and where readers are asked (D.2).",
        ),
    ] = False,
) -> None:
    """Show every norm: its kind, and whether it folds or why not. Nothing is changed."""
    from onnxfold import api
    from onnxfold.report import cautions, printed

    with terminal.progress(context.obj, model):
        document = api.inspect(model, nodes=nodes, paper=paper, **chosen)
    if as_json:
        terminal.print_json(document.to_dict())
    else:
        console = terminal.console(context.obj)
        for row in document.get("nodes", ()):
            console.print(f"{row['operator']} {row['name']}: {row['what']}")
        printed.print_norms(console, document, full=context.obj is Verbosity.VERBOSE)
        if context.obj is Verbosity.QUIET:
            terminal.warn(cautions.of_norms(document))
