"""onnxfold explain."""

from typing import Annotated

import typer

from onnxfold.cli import terminal
from onnxfold.errors import UsageError
from onnxfold.refusal import EXPLANATIONS, RefusalCode


def explain(
    context: typer.Context,
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="A code of inspect, such as graph_output."),
    ] = None,
) -> None:
    """Explain the code of a refusal, and its remedy. Without CODE, list all."""
    from onnxfold.report.fitted_tables import print_table

    console = terminal.console(context.obj)
    if code is None:
        print_table(console, ("", ""), [(known, _first(known)) for known in RefusalCode])
        return
    if code not in list(RefusalCode):
        raise UsageError(f"there is no refusal code '{code}'; 'onnxfold explain' lists them all")
    found = EXPLANATIONS[RefusalCode(code)]
    for paragraph in (code, "", found.meaning, "", f"What to do: {found.remedy}"):
        console.print(paragraph)


def _first(code: RefusalCode) -> str:
    """Return the first sentence on a code."""
    return EXPLANATIONS[code].meaning.partition(". ")[0].partition(": ")[0].rstrip(".")
