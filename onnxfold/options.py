"""The options of optimize and convert, each declared once with its help; light to import."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from onnxfold.errors import UsageError
from onnxfold.option_checks import bytes_of, check_count, check_number, check_scale, check_split
from onnxfold.target import Target

METADATA_KEY = "onnxfold"  # the metadata entry in which a written model names its options
DEFAULT_SPLIT_BYTES = 1 << 20
DEFAULT_RANGE_LIMIT = 16.0  # four of the eight bits of an integer weight
DEFAULT_NOISE_LIMIT = 4.0
DEFAULT_INEXACT_ERROR = 0.01  # relative, as of float16
_COUNTED = ("allow_split", "check", "seed", "scale_margin", "rotation_seed")
_MEASURED = ("rtol", "atol", "range_limit", "drop_means", "max_error")
ROTATIONS = ("hadamard", "random", "off")


Choice = TypeVar("Choice", bound=StrEnum)
# Inputs to run models on: texts as on the command line, or an array or a shape by name.
GivenInputs: TypeAlias = Mapping[str, Any] | Sequence[str] | str


def member(kind: type[Choice], name: str, what: str) -> Choice:
    """Return the member of a name; raises UsageError, which lists all, for an unknown one."""
    try:
        return kind(name)
    except ValueError as error:
        raise UsageError(f"there is no {what}; there are {', '.join(kind)}") from error


def target_named(name: str) -> Target:
    """Return the target of a name; raises UsageError for an unknown one."""
    return member(Target, name, f"target '{name}'")


class Device(StrEnum):
    """The device for which a file for target ORT is fastest."""

    CPU = "cpu"
    CUDA = "cuda"


class Defer(StrEnum):
    """Which norms defer their scale, to be multiplied after linear layers or canceled."""

    OFF = "off"
    AUTO = "auto"  # with targets that were measured to gain by it
    ALL = "all"  # wherever it is exact for every row


class FuseAffine(StrEnum):
    """Which gammas, betas and scales move into linear layers."""

    ALWAYS = "always"  # whatever can, a new Add for a beta among it
    AUTO = "auto"  # those that save an operator or operand, or do no harm
    NEVER = "never"


def fuse_affine_named(name: FuseAffine | str | bool) -> FuseAffine:
    """Return the member of a name, or of a boolean; raises UsageError for others."""
    if isinstance(name, bool):
        return FuseAffine.AUTO if name else FuseAffine.NEVER
    return member(FuseAffine, name, f"fuse_affine '{name}'")


class Folding(StrEnum):
    """Which of the foldable norms are folded."""

    AUTO = "auto"  # those that do not cost more operators than they save
    ALWAYS = "always"  # wherever it is exact


class WrittenForm(StrEnum):
    """The spelling of norms that a fold could make RMS norms."""

    AUTO = "auto"
    OP = "op"  # RMSNormalization
    DECOMPOSED = "decomposed"  # Pow, ReduceMean, Add, Sqrt, Div, Mul
    LAYER = "layer"  # LayerNormalization: no fold, only gamma, beta and scales move


class Conversion(StrEnum):
    """The form to which ``convert`` changes the norms."""

    RMS = "rms"  # LayerNorm to RMSNorm, over streams centered in the weights
    CRMS = "crms"  # RMSNorm of a zero-mean stream to CRMSNorm of the stream without a channel
    LAYER = "layer"  # RMSNorm of a zero-mean stream to LayerNorm


class Metric(StrEnum):
    """The metrics of an error budget (`onnxfold.check.error_metrics`)."""

    RELATIVE = "relative"
    COSINE = "cosine"
    TOP1 = "top1"
    KL = "kl"


def conversion_named(name: str) -> Conversion:
    """Return the conversion of a name; raises UsageError for an unknown one."""
    return member(Conversion, name, f"conversion to '{name}'")


class Told:
    """The help of an option on the command line, and how it is written there.

    cli: metavar, min and parser, as Typer has them. type: its type there, if another than the
    field's. flag: the words for it. off: a flag of its own, the value that it stands for, and its
    help. A bool that is True by default is a flag that makes it False.
    """

    def __init__(self, text: str, **cli: Any) -> None:
        self.text = text
        self.cli = cli


InputsOption = Annotated[
    GivenInputs,
    Told(
        "What models run on: shapes (ids:1,128), arrays (ids:ids.npy) or all (inputs.npz); "
        "repeat for several.",
        metavar="NAME:VALUE",
        type=list[str] | None,
    ),
]


SeedOption = Annotated[int, Told("Seed of random inputs.")]


ProvidersOption = Annotated[
    tuple[str, ...], Told("ONNX Runtime execution providers; repeat in order.", metavar="NAME")
]


ForceOption = Annotated[
    bool, Told("Allow OUT to replace IN, or a file that onnxfold did not write.")
]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of optimize and convert, equal to the options of their commands.

    ``convert_to`` changes only the form of the norms; ``shift`` seeds the shifts of the weights
    upstream of LayerNorms that ignore them; CRMS stores a stream of d - 1 channels only if
    ``multiple_of`` divides that, and passes as few to linear layers with ``change_readers``, which
    moves gamma and beta into them. ``defer_means``: deferral includes LayerNorms that keep their
    mean, whose rounding grows with |mean| / std. ``drop_means``: LayerNorms that do not fold become
    RMSNorms if their mean on ``data`` is at most that share of a vector's length, which is inexact;
    ``max_error`` bounds the error. ``check`` is the number of inputs that both models are run on: 0
    proves the result and runs nothing, None does neither. ``scale_streams``: streams are divided by
    2^K, or (``"auto"``) by the power of two that leaves ``scale_margin`` bits below the largest
    number of float16, also on ``data``. ``rotate``: streams and heads are multiplied by an
    orthogonal matrix, drawn from ``rotation_seed``. ``split_gamma``: norms pass a part of gamma to
    the linear layers after them, by this exponent or the best (``"auto"``).
    """

    target: Annotated[
        Target,
        Told(
            "; ".join(f"**{each}**: {each.traits.purpose}" for each in Target) + ".",
            parser=target_named,
            metavar="TARGET",
        ),
    ] = Target.ONNX
    device: Annotated[Device, Told("With --target ort: the device to be fastest on.")] = Device.CPU
    fold: Annotated[
        Folding,
        Told(
            "Which of the norms that can fold do: **auto** those that are not slower for it, by "
            "the prices of what stands in their place; **always** all."
        ),
    ] = Folding.AUTO
    norm_form: Annotated[
        WrittenForm,
        Told(
            "**op**: RMSNormalization (raises the opset to 23), **decomposed**: Pow, ReduceMean, "
            "Add, Sqrt, Div, Mul, **layer**: no norm folds, for engines that compute in half "
            "precision and protect LayerNormalization alone; **auto**: decomposed.",
            metavar="FORM",
        ),
    ] = WrittenForm.AUTO
    allow_split: Annotated[
        int,
        Told(
            "Store a weight twice (plain and centered) when it is at most this large; larger "
            "ones get a centering operator instead.",
            metavar="BYTES",
        ),
    ] = DEFAULT_SPLIT_BYTES
    exclude: Annotated[str | None, Told("Leave out norms whose name matches.", metavar="REGEX")] = (
        None
    )
    check: Annotated[
        int | None,
        Told(
            "Check on N sets of inputs; 0 only proves the result.",
            metavar="N",
            off=("--no-check", None, "Write without proof and check."),
        ),
    ] = 2
    noise_limit: float = DEFAULT_NOISE_LIMIT
    rtol: Annotated[float | None, Told("Also demand |error| <= atol + rtol |truth|.")] = None
    atol: Annotated[float | None, Told("See --rtol.")] = None
    inputs: InputsOption = ()
    seed: SeedOption = 0
    providers: ProvidersOption = ()
    memory: Annotated[
        float | None,
        Told(
            "Memory for running models; larger ones run piece by piece. Otherwise most of what "
            "is free.",
            metavar="GB",
        ),
    ] = None
    save_as_external_data: Annotated[
        bool | None, Told("Write the weights to OUT.data; otherwise keep the layout of IN.")
    ] = None
    share_weights: Annotated[
        bool,
        Told(
            "Write changed weights only; for the others OUT, which must lie in the folder of IN, "
            "refers to IN's data files."
        ),
    ] = False
    strip_metadata: Annotated[
        bool,
        Told(
            "Leave out what an exporter noted at graphs, nodes and values, such as stack traces; "
            "the model's own metadata stays."
        ),
    ] = False
    fuse_residual: Annotated[bool, Told("Leave residual additions on their own.")] = True
    fuse_affine: Annotated[
        FuseAffine,
        Told(
            "Move gamma, beta and scales into linear layers: **auto** where an operator or "
            "operand goes away or int8 does not suffer, **always** wherever that is exact, with "
            "a new Add for a beta where a layer has no bias, **never**.",
            metavar="WHEN",
            off=("--no-fuse-affine", FuseAffine.NEVER, "The same as --fuse-affine never."),
        ),
    ] = FuseAffine.AUTO
    defer: Annotated[
        Defer,
        Told(
            "Let the scale of a norm wait after the linear layers that read it: **all** wherever "
            "that is exact for every row, **auto** with targets that were measured to gain by it "
            "(none so far), and as **off** with others. **off** also computes norms that a model "
            "came with deferred where they stood."
        ),
    ] = Defer.OFF
    defer_means: Annotated[
        bool,
        Told(
            "With --defer: LayerNorms that keep their mean wait too. Their rounding grows with "
            "|mean| / std of a row, up to what the report says (`deferral`, `bound`)."
        ),
    ] = False
    range_limit: Annotated[
        float,
        Told(
            "Warn where a scale widens the range of a weight's columns more than this.",
            metavar="RATIO",
        ),
    ] = DEFAULT_RANGE_LIMIT
    drop_means: Annotated[
        float | None,
        Told(
            "Inexact: with --data, LayerNorms that do not fold become RMSNorms where the mean of "
            "every vector is at most this share of its length, 0 to 1.",
            metavar="MAX",
        ),
    ] = None
    max_error: Annotated[
        float,
        Told("For --drop-means: the largest relative error of an output on DATA.", metavar="E"),
    ] = DEFAULT_INEXACT_ERROR
    dry_run: Annotated[bool, Told("Plan and print, write nothing.")] = False
    force: ForceOption = False
    fail_if_unchanged: Annotated[bool, Told("Exit 1 when nothing can be improved.")] = False
    convert_to: Conversion | None = None
    shift: Annotated[
        int | None,
        Told(
            "With --to layer: add random numbers to the weights before LayerNorms, which see "
            "none of them, so that the stream has a mean again.",
            metavar="SEED",
            min=0,
        ),
    ] = None
    multiple_of: Annotated[
        int,
        Told(
            "With --to crms: leave a stream of d channels alone where N does not divide d - 1, "
            "for hardware that is slow at such rows.",
            metavar="N",
            min=1,
        ),
    ] = 1
    change_readers: Annotated[
        bool,
        Told(
            "With --to crms: norms give d - 1 channels where only linear layers read them, which "
            "take gamma, beta and A - 1 a', a the last row of A, without that row."
        ),
    ] = False
    scale_streams: Annotated[
        str | int,
        Told(
            "Divide the residual streams by a power of two, which no norm sees, so that float16 "
            "holds them: by 2^K, or **auto**: by the least that leaves --scale-margin bits below "
            "65504 on the inputs of the check and on --data.",
            metavar="auto|K|off",
            type=str,
        ),
    ] = "off"
    scale_margin: Annotated[
        int, Told("With --scale-streams auto: bits to spare.", metavar="BITS", min=0)
    ] = 3
    data: Annotated[
        str | os.PathLike[str] | None,
        Told(
            "For --scale-streams, --split-gamma and --drop-means: your inputs, as for measure.",
            metavar="FILE|DIR",
            type=Path | None,
        ),
    ] = None
    rotate: Annotated[
        str,
        Told(
            "**hadamard** or **random**: multiply residual streams and heads by an orthogonal "
            "matrix, which no norm sees, so that outliers are spread before a quantization to "
            "int8 or int4. `onnxfold rotate` measures whether that helps.",
            metavar="MATRIX",
        ),
    ] = "off"
    rotation_seed: Annotated[int, Told("With --rotate: which matrix.", metavar="N", min=0)] = 0
    split_gamma: Annotated[
        str | float,
        Told(
            "Split gamma between a norm and the linear layers after it, before a quantization to "
            "int8: by the exponent A, from 0 to 1, or the one of least error (**auto**).",
            metavar="auto|A|off",
            type=str,
        ),
    ] = "off"

    def __post_init__(self) -> None:
        check_scale(self.scale_streams)
        check_split(self.split_gamma)
        if "off" not in (self.rotate, self.split_gamma):
            raise UsageError("--rotate moves all of gamma: leave --split-gamma out")
        if self.rotate not in ROTATIONS:
            raise UsageError(f"--rotate takes {', '.join(ROTATIONS)}, not '{self.rotate}'")
        for name in _COUNTED:
            check_count(name, getattr(self, name))
        for name in _MEASURED:
            check_number(name, getattr(self, name))
        bytes_of(self.memory)
        if self.drop_means is not None and self.data is None:
            raise UsageError("--drop-means measures means on data: add --data")
        uses = self.drop_means is not None, self.scale_streams != "off", self.split_gamma != "off"
        if self.data is not None and not any(uses):
            raise UsageError(
                "--data is for --scale-streams, --split-gamma and --drop-means: add one of them"
            )
        if self.defer_means and self.defer is Defer.OFF:
            raise UsageError("--defer-means is about norms that wait: add --defer all")
