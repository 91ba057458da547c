"""onnxfold inspect."""

from __future__ import annotations

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import (
    DeferOption,
    ExcludeOption,
    JsonOption,
    Model,
    NoFuseAffineOption,
    SplitOption,
    TargetOption,
)
from onnxfold.options import Defer, Target

__all__ = ["inspect"]


def inspect(
    context: typer.Context,
    model: Model,
    as_json: JsonOption = False,
    target: TargetOption = Target.ONNX,
    allow_split: SplitOption = 1 << 20,
    exclude: ExcludeOption = None,
    no_fuse_affine: NoFuseAffineOption = False,
    defer: DeferOption = Defer.OFF,
) -> None:
    """Show every norm: what it is, and whether it folds or why not. Changes nothing."""
    from onnxfold import api
    from onnxfold.report import text

    with terminal.progress(context.obj, model):
        document = api.inspect(
            model,
            target=target,
            allow_split=allow_split,
            exclude=exclude,
            fuse_affine=not no_fuse_affine,
            defer=defer,
        )
    if as_json:
        terminal.print_json(document)
    else:
        text.print_norms(terminal.console(), document)
