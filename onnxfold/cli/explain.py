"""onnxfold explain."""

from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.errors import UsageError
from onnxfold.refusal import EXPLANATIONS, RefusalCode


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="A code of inspect, such as graph_output."),
    ] = None,
) -> None:
    """Say what the code of a refusal means, and what can be done. Without CODE: list all."""
    from rich.text import Text

    console = terminal.console()
    if code is None:
        width = max(map(len, RefusalCode))
        for known in RefusalCode:
            first = EXPLANATIONS[known].meaning.partition(". ")[0].partition(": ")[0].rstrip(".")
            console.print(Text(f"{known.value:{width}}  {first}"))
        return
    if code not in list(RefusalCode):
        raise UsageError(f"there is no refusal code '{code}'; 'onnxfold explain' lists them all")
    found = EXPLANATIONS[RefusalCode(code)]
    console.print(Text(f"{code}\n\n{found.meaning}\n\nWhat to do: {found.remedy}"))
