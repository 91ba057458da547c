"""onnxfold triton."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import FOLDED, Model, ReportOption, with_options
from onnxfold.cli.terminal import Verbosity
from onnxfold.serving.triton.device import TritonDevice


@with_options(*FOLDED)
def triton(
    context: typer.Context,
    model: Model,
    *,
    repository: Annotated[
        Path, typer.Option(metavar="DIR", help="The model repository; made where it is missing.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the model in Triton; that of IN when left out.")
    ] = None,
    version: Annotated[int, typer.Option(min=1, metavar="V", help="Version of the model.")] = 1,
    max_batch: Annotated[
        int,
        typer.Option(
            min=0, metavar="B", help="Let Triton join requests up to this batch size; 0: never."
        ),
    ] = 0,
    device: Annotated[
        TritonDevice, typer.Option(help="Where Triton runs the model.")
    ] = TritonDevice.CPU,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Threads within an operator; otherwise Triton's default."
        ),
    ] = None,
    repository_in_server: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Where Triton finds the repository, if not at the path of DIR."
        ),
    ] = None,
    keep_config: Annotated[
        bool, typer.Option("--keep-config", help="Leave the config.pbtxt that is there.")
    ] = False,
    chosen: dict[str, Any],
    report: ReportOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace the model of a version, and a config, that are there."
        ),
    ] = False,
) -> None:
    """Optimize a model and write it into a model repository of Triton Inference Server.

    DIR gets the folder of the model: its configuration, the kernels, and the version. Nothing is
    written unless the proof and the check pass; existing versions stay.

    `onnxfold triton model.onnx --repository models --max-batch 16`

    `onnxfold triton model.onnx --repository models --repository-in-server /models`
    for a server that has DIR mounted at /models.
    """
    from onnxfold.report import cautions, printed
    from onnxfold.serving.triton.repository import Deployment, publish

    verbosity: Verbosity = context.obj
    terminal.check_reports(report, model, force=force)
    deployment = Deployment(
        repository,
        name,
        version,
        max_batch,
        device,
        threads,
        repository_in_server,
        keep_config,
        force,
    )
    with terminal.progress(verbosity, model, repository) as progress:
        published = publish(model, deployment, progress=progress, **chosen)
    terminal.tell_result(published.report, report, verbosity, as_json=False, source=model)
    printed.print_triton(terminal.console(verbosity), published.report)
    if verbosity is Verbosity.QUIET:
        terminal.warn(cautions.of_deployment(published.report))
