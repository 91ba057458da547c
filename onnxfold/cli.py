"""The command line.  Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from onnxfold import __version__
from onnxfold.errors import ModelError, OnnxfoldError, UsageError, VerificationError
from onnxfold.lower.target import Target

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app", "main"]

_PIPED_WIDTH = 120

app = typer.Typer(
    name="onnxfold",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Give an ONNX model the same function with cheaper normalization.

    Every LayerNorm that can **exactly** become an RMSNorm does: the weights before it are
    centred once, in the file, so that nothing has to subtract a mean at run time. The result is
    proved from the weights, checked against a float64 run of the original, and only then written.

    `onnxfold optimize model.onnx -o fast.onnx` folds, proves, checks and writes.

    `onnxfold inspect model.onnx` shows every norm: whether it folds, or why not.

    Exit codes: 0 done and checked, also when nothing was to do; 1 the check failed and nothing was
    written; 2 bad usage; 3 the model cannot be read or written, or is not supported.""",
)


class Verbosity(StrEnum):
    """How much is said on standard error."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


Model = Annotated[Path, typer.Argument(metavar="IN", help="The ONNX model, .onnx.")]
TargetOption = Annotated[
    Target,
    typer.Option(
        help="**portable**: functions that any runtime runs and the onnxfold kernels "
        "speed up; **onnx**: standard operators only; **ort**: ONNX Runtime's "
        "contrib operators."
    ),
]
SplitOption = Annotated[
    int,
    typer.Option(
        metavar="BYTES",
        help="Store a weight twice (plain and centred) when it is at most this large; larger ones "
        "get a centring operator instead.",
    ),
]
ExcludeOption = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Leave norms alone whose name matches."),
]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:SHAPE|NAME:FILE.npy|FILE.npz",
        help="Inputs for the check: a shape (ids:1,128) or data; repeat for several.",
    ),
]
ProvidersOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="ONNX Runtime execution providers; repeat in order."),
]
SeedOption = Annotated[int, typer.Option(help="Seed of the check's random inputs.")]
SamplesOption = Annotated[int, typer.Option(metavar="N", help="Check on N sets of inputs.")]
RtolOption = Annotated[
    float | None, typer.Option(help="Also demand |error| <= atol + rtol |truth|.")
]
AtolOption = Annotated[float | None, typer.Option(help="See --rtol.")]
RangeLimitOption = Annotated[
    float,
    typer.Option(
        metavar="RATIO",
        help="Warn where a scale widens the range of a weight's columns more than this.",
    ),
]
NoFuseAffineOption = Annotated[
    bool,
    typer.Option("--no-fuse-affine", help="Leave gamma, beta and scales where they are."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnxfold {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only errors.")] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if verbose and quiet:
        raise typer.BadParameter("--verbose and --quiet exclude each other")
    context.obj = Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


@app.command()
def optimize(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where to write.")
    ] = None,
    target: TargetOption = Target.PORTABLE,
    allow_split: SplitOption = 1 << 20,
    exclude: ExcludeOption = None,
    check: SamplesOption = 2,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Write without proof and check.")
    ] = False,
    rtol: RtolOption = None,
    atol: AtolOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    providers: ProvidersOption = None,
    no_fuse_affine: NoFuseAffineOption = False,
    range_limit: RangeLimitOption = 16.0,
    no_fuse_residual: Annotated[
        bool, typer.Option("--no-fuse-residual", help="Leave residual additions on their own.")
    ] = False,
    save_as_external_data: Annotated[
        bool,
        typer.Option(
            "--save-as-external-data", help="Weights in OUT.data; kept as they were else."
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json|.html", help="Write the full report.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and print, write nothing.")
    ] = False,
    fail_if_unchanged: Annotated[
        bool, typer.Option("--fail-if-unchanged", help="Exit 1 when nothing can be improved.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Allow OUT to replace IN.")] = False,
) -> None:
    """Fold every LayerNorm that can exactly become an RMSNorm; prove, check and write the result.

    Nothing is written unless the proof and the check pass. OUT runs in any ONNX runtime; IN is
    never changed.

    `onnxfold optimize model.onnx -o fast.onnx`

    `onnxfold optimize model.onnx -o fast.onnx --report report.html` keeps the details.

    `onnxfold optimize model.onnx --dry-run` shows the plan and writes nothing.

    `onnxfold optimize model.onnx -o fast.onnx --inputs ids:1,128 --inputs mask:mask.npy`
    checks on inputs of this shape and on your own data.
    """
    from onnxfold import pipeline
    from onnxfold import report as reports

    verbosity: Verbosity = context.obj
    _check_report(report)
    if output is None and not dry_run:
        raise UsageError("say where to write the result (-o OUT), or use --dry-run")
    with _progress(verbosity) as progress:
        result = pipeline.optimize(
            model,
            output,
            progress=progress,
            target=target,
            allow_split=allow_split,
            exclude=exclude,
            check=0 if no_check else check,
            rtol=rtol,
            atol=atol,
            inputs=tuple(inputs or ()),
            seed=seed,
            providers=tuple(providers or ()),
            save_as_external_data=True if save_as_external_data else None,
            fuse_residual=not no_fuse_residual,
            fuse_affine=not no_fuse_affine,
            range_limit=range_limit,
            dry_run=dry_run,
            force=force,
            fail_if_unchanged=fail_if_unchanged,
        )
    if report is not None:
        reports.write_report(report, result.report)
    if verbosity is not Verbosity.QUIET:
        reports.print_result(_console(), result.report, verbose=verbosity is Verbosity.VERBOSE)


@app.command()
def inspect(
    context: typer.Context,
    model: Model,
    as_json: JsonOption = False,
    target: TargetOption = Target.PORTABLE,
    allow_split: SplitOption = 1 << 20,
    exclude: ExcludeOption = None,
    no_fuse_affine: NoFuseAffineOption = False,
) -> None:
    """Show every norm: what it is, and whether it folds or why not. Changes nothing."""
    from onnxfold import pipeline
    from onnxfold import report as reports

    with _progress(context.obj):
        document = pipeline.inspect(
            model,
            target=target,
            allow_split=allow_split,
            exclude=exclude,
            fuse_affine=not no_fuse_affine,
        )
    if as_json:
        _print_json(document)
    else:
        reports.print_norms(_console(), document)


@app.command()
def verify(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to check against it.")],
    samples: Annotated[int, typer.Option(metavar="N", help="Sets of inputs.")] = 2,
    rtol: RtolOption = None,
    atol: AtolOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    providers: ProvidersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that B computes what A computes, relative to the rounding error of A itself.

    Both run on seeded inputs and are compared with a float64 run of A. B passes when no output
    errs more than a small multiple of what A errs itself; exits 1 otherwise.
    """
    from onnxfold import pipeline
    from onnxfold import report as reports

    with _progress(context.obj) as progress:
        verification = pipeline.verify(
            first,
            second,
            samples=samples,
            rtol=rtol,
            atol=atol,
            inputs=tuple(inputs or ()),
            seed=seed,
            providers=tuple(providers or ()),
            progress=progress,
        )
    if as_json:
        _print_json(verification.to_json())
    else:
        reports.print_verification(_console(), verification.to_json())
    if not verification.passed:
        raise typer.Exit(VerificationError.exit_code)


@app.command()
def bench(
    context: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(metavar="A [B ...]", help="The models; ratios are to A.")
    ],
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds; each runs every model.")] = 30,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads within an operator.")] = 1,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    providers: ProvidersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time models against each other in ONNX Runtime, with and without onnxfold's kernels.

    Runs are interleaved, so that a machine that slows down slows all of them; the ratio is the
    median over rounds of a model's time to the first one's.
    """
    from onnxfold import report as reports
    from onnxfold.bench import bench as measure

    with _progress(context.obj) as progress:
        measured = measure(
            models,
            rounds=rounds,
            threads=threads,
            inputs=tuple(inputs or ()),
            seed=seed,
            providers=tuple(providers or ()),
            progress=progress,
        )
    if as_json:
        _print_json(measured.to_json())
    else:
        reports.print_benchmark(_console(), measured.to_json())


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show versions, execution providers and the kernel library, and test the kernels."""
    from onnxfold.doctor import examine, print_examination

    document = examine()
    if as_json:
        _print_json(document)
    else:
        print_examination(_console(), document)
    if not document["healthy"]:
        raise typer.Exit(3)


@app.command("lib-path")
def lib_path(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print the absolute path of the kernel library, for ONNX Runtime, Triton and C++."""
    from onnxfold.runtime import get_library_path

    typer.echo(get_library_path(device))


def _check_report(report: Path | None) -> None:
    if report is not None and report.suffix not in (".json", ".html"):
        raise UsageError(f"--report {report}: the name must end in .json or .html")
    if report is not None and not os.access(report.parent, os.W_OK | os.X_OK):
        raise ModelError(
            f"cannot write the report '{report}': no writable folder '{report.parent}'"
        )


def _print_json(document: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(document, indent=2))


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(width=width, highlight=False)


@contextmanager
def _progress(verbosity: Verbosity) -> Iterator[Callable[[str, float], None] | None]:
    """Show a bar on standard error while it is a terminal; otherwise nothing."""
    if verbosity is Verbosity.QUIET or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=done)

        yield show


def _fail(error: OnnxfoldError) -> NoReturn:
    typer.echo(f"onnxfold: {error}", err=True)
    sys.exit(error.exit_code)


def main() -> None:
    """Run the command line; every foreseen failure is one line and an exit code."""
    # ONNX Runtime 1.29 and later report their use and keep files in the home folder by default.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        app()
    except OnnxfoldError as error:
        _fail(error)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:  # the last resort: a defect is one line too, and never exit code 0
        if {"-v", "--verbose"} & set(sys.argv[1:]):
            raise
        sentence = str(error).splitlines()[0] if str(error) else ""
        typer.echo(
            f"onnxfold: internal error, {type(error).__name__}: {sentence}; this is a defect: "
            "please report it with the traceback that --verbose shows",
            err=True,
        )
        sys.exit(3)
    except KeyboardInterrupt:
        typer.echo("onnxfold: interrupted", err=True)
        sys.exit(130)
