"""onnxfold inspect."""

from typing import Annotated

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.terminal import Verbosity
from onnxfold.options import Defer, Folding, Target


def inspect(
    context: typer.Context,
    model: options.Model,
    as_json: options.JsonOption = False,
    target: options.TargetOption = Target.ONNX,
    allow_split: options.SplitOption = 1 << 20,
    exclude: options.ExcludeOption = None,
    fold: options.FoldOption = Folding.AUTO,
    fuse_affine: options.FuseAffineOption = None,
    no_fuse_affine: options.NoFuseAffineOption = False,
    defer: options.DeferOption = Defer.OFF,
    defer_means: options.DeferMeansOption = False,
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
    from rich.text import Text

    from onnxfold import api
    from onnxfold.report import cautions, printed

    with terminal.progress(context.obj, model):
        document = api.inspect(
            model,
            target=target,
            allow_split=allow_split,
            exclude=exclude,
            fuse_affine=options.chosen_fuse_affine(fuse_affine, no_fuse_affine),
            defer=defer,
            defer_means=defer_means,
            fold=fold,
            nodes=nodes,
            paper=paper,
        )
    if as_json:
        terminal.print_json(document.to_dict())
    else:
        console = terminal.console(context.obj)
        for row in document.get("nodes", ()):
            console.print(Text(f"{row['operator']} {row['name']}: {row['what']}"))
        printed.print_norms(console, document, full=context.obj is Verbosity.VERBOSE)
        if context.obj is Verbosity.QUIET:
            terminal.warn(cautions.of_norms(document))
