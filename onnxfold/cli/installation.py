"""onnxfold doctor and onnxfold lib-path: what is installed."""

from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption


def doctor(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show versions, execution providers and the kernel library, and test the kernels."""
    from onnxfold.report.printed_examination import print_examination
    from onnxfold.runtime.doctor import examine

    document = examine()
    if as_json:
        terminal.print_json(document)
    else:
        print_examination(terminal.console(context.obj), document)
    if not document["healthy"]:
        raise typer.Exit(3)


def lib_path(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print the absolute path of the kernel library, for ONNX Runtime, Triton and C++."""
    from onnxfold.runtime.library import get_library_path

    terminal.say(get_library_path(device))
