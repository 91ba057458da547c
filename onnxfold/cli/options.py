"""Options that several commands share: each is declared once, with its help.

A command that folds uses all of :class:`FoldOptions`, by :func:`with_fold_options`, and one that
only converts the norms all of :class:`CheckedOptions`.
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from onnxfold.cli.terminal import chosen_verbosity
from onnxfold.errors import UsageError
from onnxfold.options import (
    Defer,
    Device,
    Folding,
    FuseAffine,
    Target,
    WrittenForm,
    target_named,
)

# Options on output and destinations, which do not affect the result.
_ABOUT_OUTPUT = frozenset({"as_json", "force", "output", "quiet", "report", "verbose"})
_NAMED = inspect.Parameter.KEYWORD_ONLY


def chosen_fuse_affine(chosen: FuseAffine | None, not_at_all: bool) -> FuseAffine:
    """Return the combination of two options; raises UsageError if they conflict."""
    if not not_at_all:
        return chosen or FuseAffine.AUTO
    if chosen not in (None, FuseAffine.NEVER):
        raise UsageError(f"--no-fuse-affine and --fuse-affine {chosen} exclude one another")
    return FuseAffine.NEVER


def written_file(name: str) -> Path:
    """Return the path of a file to write; raises ModelError for the name of a directory."""
    from onnxfold.model_io import file_to_write  # imported here, because help does not need onnx

    return file_to_write(name)


Model = Annotated[Path, typer.Argument(metavar="IN", help="The ONNX model, .onnx.")]
OutArgument = Annotated[
    Path | None,
    typer.Argument(parser=written_file, metavar="OUT", help="Where to write; the same as -o OUT."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", parser=written_file, metavar="OUT", help="Where to write."),
]
TargetOption = Annotated[
    Target,
    typer.Option(
        parser=target_named,
        metavar="TARGET",
        help="**onnx**: standard operators, for every runtime and tool that takes IN; **ort**: "
        "what is fastest in ONNX Runtime as it is; **kernels**: functions, for ONNX Runtime with "
        "the onnxfold library, which other runtimes may not take.",
    ),
]
DeviceOption = Annotated[
    Device, typer.Option(help="With --target ort: the device to be fastest on.")
]
SplitOption = Annotated[
    int,
    typer.Option(
        metavar="BYTES",
        help="Store a weight twice (plain and centered) when it is at most this large; larger ones "
        "get a centering operator instead.",
    ),
]
ExcludeOption = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Leave out norms whose name matches."),
]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:VALUE",
        help="What models run on: shapes (ids:1,128), arrays (ids:ids.npy) or all (inputs.npz); "
        "repeat for several.",
    ),
]
ProvidersOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="ONNX Runtime execution providers; repeat in order."),
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Memory for running models; larger ones run piece by piece. Otherwise most of what is "
        "free.",
    ),
]
ThreadsOption = Annotated[int, typer.Option(metavar="N", help="Threads within an operator.")]
SeedOption = Annotated[int, typer.Option(help="Seed of random inputs.")]
RtolOption = Annotated[
    float | None, typer.Option(help="Also demand |error| <= atol + rtol |truth|.")
]
AtolOption = Annotated[float | None, typer.Option(help="See --rtol.")]
# Of one metric or several.
METRIC = typer.Option(
    metavar="relative|cosine|top1|kl",
    help="What a model of **reduced precision** is judged by; top1 and kl are for logits.",
)
MAX_ERROR = typer.Option(
    metavar="X",
    help="The largest error by --metric that is right; otherwise what suits the precision.",
)
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DATA",
        help="A file or folder of inputs to compare on as well, as **measure** reads it.",
    ),
]
FuseAffineOption = Annotated[
    FuseAffine | None,
    typer.Option(
        metavar="WHEN",
        help="Move gamma, beta and scales into linear layers: **auto** (the default) where an "
        "operator or operand goes away or int8 does not suffer, **always** wherever that is exact, "
        "with a new Add for a beta where a layer has no bias, **never**.",
    ),
]
NoFuseAffineOption = Annotated[
    bool, typer.Option("--no-fuse-affine", help="The same as --fuse-affine never.")
]
FoldOption = Annotated[
    Folding,
    typer.Option(
        help="Which of the norms that can fold do: **auto** those that are not slower for it, by "
        "the prices of what stands in their place; **always** all."
    ),
]
DeferOption = Annotated[
    Defer,
    typer.Option(
        help="Let the scale of a norm wait after the linear layers that read it: **all** wherever "
        "that is exact for every row, **auto** with targets that were measured to gain by it (none "
        "so far), and as **off** with others. **off** also computes norms that a model came with "
        "deferred where they stood."
    ),
]
DeferMeansOption = Annotated[
    bool,
    typer.Option(
        "--defer-means",
        help="With --defer: LayerNorms that keep their mean wait too. Their rounding grows with "
        "|mean| / std of a row, up to what the report says (`deferral`, `bound`).",
    ),
]
ScaleStreamsOption = Annotated[
    str,
    typer.Option(
        metavar="auto|K|off",
        help="Divide the residual streams by a power of two, which no norm sees, so that float16 "
        "holds them: by 2^K, or **auto**: by the least that leaves --scale-margin bits below 65504 "
        "on the inputs of the check and on --data.",
    ),
]
ScaleMarginOption = Annotated[
    int, typer.Option(metavar="BITS", min=0, help="With --scale-streams auto: bits to spare.")
]
RangesDataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|DIR",
        help="For --scale-streams, --split-gamma and --drop-means: your inputs, as for measure.",
    ),
]
RotateOption = Annotated[
    str,
    typer.Option(
        metavar="MATRIX",
        help="**hadamard** or **random**: multiply residual streams and heads by an orthogonal "
        "matrix, which no norm sees, so that outliers are spread before a quantization to int8 or "
        "int4. `onnxfold rotate` measures whether that helps.",
    ),
]
SplitGammaOption = Annotated[
    str,
    typer.Option(
        metavar="auto|A|off",
        help="Split gamma between a norm and the linear layers after it, before a quantization to "
        "int8: by the exponent A, from 0 to 1, or the one of least error (**auto**).",
    ),
]
RotationSeedOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="With --rotate: which matrix.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ReportOption = Annotated[
    list[Path] | None,
    typer.Option(
        parser=written_file,
        metavar="FILE",
        help="Write the full report, .json or .html; repeat for both.",
    ),
]

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Plan and print, write nothing.")]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Allow OUT to replace IN, or a file that onnxfold did not write."),
]
OverwriteOption = Annotated[
    bool, typer.Option("--force", help="Replace reports and figures that onnxfold did not write.")
]

VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say only errors and warnings.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """Options of every command that rewrites a model; each field is an option."""

    allow_split: SplitOption = 1 << 20
    exclude: ExcludeOption = None
    check: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="2",
            help="Check on N sets of inputs; 0 only proves the result.",
        ),
    ] = None
    no_check: Annotated[bool, typer.Option("--no-check", help="Write without proof and check.")] = (
        False
    )
    rtol: RtolOption = None
    atol: AtolOption = None
    inputs: InputsOption = None
    seed: SeedOption = 0
    providers: ProvidersOption = None
    memory: MemoryOption = None
    save_as_external_data: Annotated[
        bool,
        typer.Option(
            "--save-as-external-data",
            help="Write the weights to OUT.data; otherwise keep the layout of IN.",
        ),
    ] = False
    strip_metadata: Annotated[
        bool,
        typer.Option(
            "--strip-metadata",
            help="Leave out what an exporter noted at graphs, nodes and values, such as stack "
            "traces; the model's own metadata stays.",
        ),
    ] = False
    fail_if_unchanged: Annotated[
        bool, typer.Option("--fail-if-unchanged", help="Exit 1 when nothing can be improved.")
    ] = False

    def keywords(self) -> dict[str, Any]:
        """Return them as options of the Python function of the command's name."""
        return {
            "allow_split": self.allow_split,
            "exclude": self.exclude,
            "check": self._samples(),
            "rtol": self.rtol,
            "atol": self.atol,
            "inputs": tuple(self.inputs or ()),
            "seed": self.seed,
            "providers": tuple(self.providers or ()),
            "memory": self.memory,
            "save_as_external_data": True if self.save_as_external_data else None,
            "strip_metadata": self.strip_metadata,
            "fail_if_unchanged": self.fail_if_unchanged,
        }

    def _samples(self) -> int | None:
        if not self.no_check:
            return 2 if self.check is None else self.check
        if self.check is not None:
            raise UsageError("--no-check and --check exclude one another; leave one out")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions(CheckedOptions):
    """Options of every command that folds a model, in addition."""

    fold: FoldOption = Folding.AUTO
    fuse_affine: FuseAffineOption = None
    no_fuse_affine: NoFuseAffineOption = False
    defer: DeferOption = Defer.OFF
    defer_means: DeferMeansOption = False
    range_limit: Annotated[
        float,
        typer.Option(
            metavar="RATIO",
            help="Warn where a scale widens the range of a weight's columns more than this.",
        ),
    ] = 16.0
    no_fuse_residual: Annotated[
        bool, typer.Option("--no-fuse-residual", help="Leave residual additions on their own.")
    ] = False
    norm_form: Annotated[
        WrittenForm,
        typer.Option(
            metavar="FORM",
            help="**op**: RMSNormalization (raises the opset to 23), **decomposed**: Pow, "
            "ReduceMean, Add, Sqrt, Div, Mul, **layer**: no norm folds, for engines that compute "
            "in half precision and protect LayerNormalization alone; **auto**: decomposed.",
        ),
    ] = WrittenForm.AUTO

    def keywords(self) -> dict[str, Any]:
        """Return them as the options of `onnxfold.optimize`."""
        return {
            **CheckedOptions.keywords(self),
            "fold": self.fold,
            "norm_form": self.norm_form,
            "fuse_residual": not self.no_fuse_residual,
            "fuse_affine": chosen_fuse_affine(self.fuse_affine, self.no_fuse_affine),
            "defer": self.defer,
            "defer_means": self.defer_means,
            "range_limit": self.range_limit,
        }


def given_options(context: typer.Context) -> dict[str, str]:
    """Return the options that affect the result and are not at their default, by name."""
    given = {}
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        decides = parameter.param_type_name == "option" and parameter.name not in _ABOUT_OUTPUT
        if decides and value not in (parameter.default, None, ()):
            several = isinstance(value, list | tuple)  # a tuple before Typer 0.16
            given[str(parameter.name)] = ", ".join(value) if several else str(value)
    return given


def words_of(context: typer.Context, without: Collection[str]) -> list[str]:
    """Return command-line words that repeat the options given by the user."""
    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in without or source is None or source.name == "DEFAULT":
            continue
        value, (option, *_) = context.params[name], parameter.opts
        if isinstance(value, bool):
            words += [option] if value else [*parameter.secondary_opts[:1]]
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words.append(f"{option}={each}")
    return words


def with_fold_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to a command for each field of the class of its parameter `fold`.

    They replace `fold` in the command's parameters. Typer reads the signature, so only that is
    changed.
    """
    hints = get_type_hints(command, include_extras=True)
    kind: type[CheckedOptions] = hints["fold"]
    names = [field.name for field in fields(kind)]
    declared = get_type_hints(kind, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == "fold":
            parameters += (
                parameter.replace(name=field.name, default=field.default, annotation=declared[name])
                for name, field in zip(names, fields(kind), strict=True)
            )
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @wraps(command)
    def spread(**given: Any) -> None:
        fold = kind(**{name: given.pop(name) for name in names})
        command(fold=fold, **given)

    _declare(spread, parameters)
    return spread


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Add --verbose and --quiet to a command, which are also allowed before its name."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    takes_context = any(parameter.name == "context" for parameter in own)
    if not takes_context:
        context = inspect.Parameter("context", _NAMED, annotation=typer.Context)
        parameters.insert(0, context)
    for name, kind in (("verbose", VerboseOption), ("quiet", QuietOption)):
        parameters.append(inspect.Parameter(name, _NAMED, default=False, annotation=kind))

    @wraps(command)
    def spread(**given: Any) -> None:
        context = given["context"] if takes_context else given.pop("context")
        verbose, quiet = given.pop("verbose"), given.pop("quiet")
        if verbose or quiet:
            context.obj = chosen_verbosity(verbose=verbose, quiet=quiet)
        command(**given)

    _declare(spread, [parameter.replace(kind=_NAMED) for parameter in parameters])
    return spread


def _declare(command: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    """Declare the parameters of a function that Typer reads.

    An unreadable file is reported by its reader, with exit code 3; Typer would exit with 2.
    """
    for parameter in parameters:
        for told in get_args(parameter.annotation)[1:]:
            told.readable = False
    # mypy knows no attribute for it; inspect.signature documents it.
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
