"""onnxfold inspect."""

from typing import Annotated

import typer

from onnxfold.cli import options, terminal
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
) -> None:
    """Show every norm: what it is, and whether it folds or why not. Changes nothing."""
    from rich.text import Text

    from onnxfold import api
    from onnxfold.report import printed

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
        )
    if as_json:
        terminal.print_json(document.to_dict())
    else:
        for row in document.get("nodes", ()):
            line = f"{row['operator']} {row['name']}: {row['what']}"
            terminal.console().print(Text(line))
        full = context.obj is terminal.Verbosity.VERBOSE
        printed.print_norms(terminal.console(), document, full=full)
