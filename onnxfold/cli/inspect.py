"""onnxfold inspect, explain, diff and verify: the commands that change nothing."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.options import JsonOption
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError, VerificationError
from onnxfold.refusal import EXPLANATIONS, RefusalCode
from onnxfold.tuning.options import TuneOptions


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


@options.with_options("rtol", "atol", "inputs", "seed", "providers", "memory")
def verify(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to check against it.")],
    *,
    metric: Annotated[list[str] | None, options.like(TuneOptions, "metric")] = None,
    max_error: Annotated[list[float] | None, options.like(TuneOptions, "max_error")] = None,
    data: Annotated[Path | None, options.like(TuneOptions, "data")] = None,
    rows: Annotated[
        int | None, typer.Option(metavar="N", help="At most N rows of data: 32 when left out.")
    ] = None,
    blame: Annotated[
        bool, typer.Option("--blame", help="Name the nodes at fault where B fails.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Sets of drawn inputs: 2, or none with --metric and --data."
        ),
    ] = None,
    chosen: dict[str, Any],
    as_json: options.JsonOption = False,
) -> None:
    """Check that B computes what A computes, relative to the rounding error of A itself.

    Both run on seeded inputs and are compared with a float64 run of A. B passes if no output errs
    more than a small multiple of what A errs itself, or with --metric, one or several, if no error
    exceeds its budget; otherwise it exits with 1.

    `onnxfold verify model.onnx int8.onnx --metric cosine --data rows.npz --blame`
    """
    from onnxfold import api
    from onnxfold.report import cautions, printed

    with terminal.progress(context.obj, first, lines=not as_json) as progress:
        verification = api.verify(
            first,
            second,
            metric=tuple(metric or ()),
            max_error=tuple(max_error or ()),
            data=data,
            rows=rows,
            blame=blame,
            samples=samples,
            **chosen,
            progress=progress,
        )
    if as_json:
        terminal.print_json(verification.to_json())
    elif context.obj is terminal.Verbosity.QUIET:
        terminal.warn(verification.notes if metric else cautions.of_check(verification.to_json()))
    else:
        shown = printed.print_budget_verification if metric else printed.print_verification
        shown(terminal.console(context.obj), verification.to_json())
    if not verification.passed:
        raise typer.Exit(VerificationError.exit_code)
