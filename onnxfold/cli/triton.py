"""onnxfold triton."""

from typing import Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import FOLDED, Model, ReportOption, with_options
from onnxfold.cli.terminal import Verbosity
from onnxfold.serving.triton.deployment import Deployment


@with_options(of=Deployment, into="deployment")
@with_options(*FOLDED)
def triton(
    context: typer.Context,
    model: Model,
    *,
    deployment: dict[str, Any],
    chosen: dict[str, Any],
    report: ReportOption = None,
) -> None:
    """Optimize a model and write it into a model repository of Triton Inference Server.

    DIR gets the folder of the model: its configuration, the kernels, and the version. Nothing is
    written unless the proof and the check pass; existing versions stay.

    `onnxfold triton model.onnx --repository models --max-batch 16`

    `onnxfold triton model.onnx --repository models --repository-in-server /models`
    for a server that has DIR mounted at /models.
    """
    from onnxfold.report import cautions, printed
    from onnxfold.serving.triton.repository import publish

    verbosity: Verbosity = context.obj
    terminal.check_reports(report, model, force=deployment["force"])
    with terminal.progress(verbosity, model, deployment["repository"]) as progress:
        published = publish(model, Deployment(**deployment), progress=progress, **chosen)
    terminal.tell_result(published.report, report, verbosity, as_json=False, source=model)
    printed.print_triton(terminal.console(verbosity), published.report)
    if verbosity is Verbosity.QUIET:
        terminal.warn(cautions.of_deployment(published.report))
