"""The options of optimize, each declared once; light to import."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, TypeAlias, TypeVar

from onnxfold.errors import UsageError

METADATA_KEY = "onnxfold"  # the metadata entry in which a written model names its options
DEFAULT_SPLIT_BYTES = 1 << 20
DEFAULT_RANGE_LIMIT = 16.0  # four of the eight bits of an integer weight
DEFAULT_NOISE_LIMIT = 4.0
# Waiting threads of ONNX Runtime spin: beyond the number of cores each one costs time, and with
# 1,000 on two cores a run never ends. A setting for a larger machine is accepted.
_THREADS_PER_CORE, _THREADS_ANYWHERE = 4, 64
DEFAULT_INEXACT_ERROR = 0.01  # relative, as of float16
_COUNTED = (
    *("allow_split", "check", "rtol", "atol", "seed", "range_limit", "scale_margin"),
    *("drop_means", "max_error", "rotation_seed"),
)
ROTATIONS = ("hadamard", "random", "off")
_MOST_BITS = 120  # of a power of two by which float32 numbers can be multiplied


Choice = TypeVar("Choice", bound=StrEnum)
# Inputs to run models on: texts as on the command line, or an array or a shape by name.
GivenInputs: TypeAlias = Mapping[str, Any] | Sequence[str] | str


def member(kind: type[Choice], name: str, what: str) -> Choice:
    """Return the member of a name; raises UsageError, which lists all, for an unknown one."""
    try:
        return kind(name)
    except ValueError as error:
        raise UsageError(f"there is no {what}; there are {', '.join(kind)}") from error


class Target(StrEnum):
    """The purpose of the output model, which limits its operators."""

    ONNX = "onnx"  # standard operators, for every runtime and tool
    ORT = "ort"  # the fastest operators of ONNX Runtime as it is
    KERNELS = "kernels"  # functions, which the onnxfold library replaces by its kernels


def target_named(name: str) -> Target:
    """Return the target of a name; raises UsageError for an unknown one."""
    if name == "portable":
        raise UsageError("the target 'portable' is called 'kernels' now")
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


def conversion_named(name: str) -> Conversion:
    """Return the conversion of a name; raises UsageError for an unknown one."""
    return member(Conversion, name, f"conversion to '{name}'")


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

    target: Target = Target.ONNX
    device: Device = Device.CPU
    fold: Folding = Folding.AUTO
    norm_form: WrittenForm = WrittenForm.AUTO
    allow_split: int = DEFAULT_SPLIT_BYTES
    exclude: str | None = None
    check: int | None = 2
    noise_limit: float = DEFAULT_NOISE_LIMIT
    rtol: float | None = None
    atol: float | None = None
    inputs: GivenInputs = ()
    seed: int = 0
    providers: tuple[str, ...] = ()
    memory: float | None = None
    save_as_external_data: bool | None = None
    share_weights: bool = False
    strip_metadata: bool = False
    fuse_residual: bool = True
    fuse_affine: FuseAffine = FuseAffine.AUTO
    defer: Defer = Defer.OFF
    defer_means: bool = False
    range_limit: float = DEFAULT_RANGE_LIMIT
    drop_means: float | None = None
    max_error: float = DEFAULT_INEXACT_ERROR
    dry_run: bool = False
    force: bool = False
    fail_if_unchanged: bool = False
    convert_to: Conversion | None = None
    shift: int | None = None
    multiple_of: int = 1
    change_readers: bool = False
    scale_streams: str | int = "off"
    scale_margin: int = 3
    data: str | os.PathLike[str] | None = None
    rotate: str = "off"
    rotation_seed: int = 0
    split_gamma: str | float = "off"

    def __post_init__(self) -> None:
        check_scale(self.scale_streams)
        check_split(self.split_gamma)
        if "off" not in (self.rotate, self.split_gamma):
            raise UsageError("--rotate moves all of gamma: leave --split-gamma out")
        if self.rotate not in ROTATIONS:
            raise UsageError(f"--rotate takes {', '.join(ROTATIONS)}, not '{self.rotate}'")
        for name in _COUNTED:
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


def check_scale(chosen: str | int) -> None:
    """Raise UsageError for an invalid choice of --scale-streams."""
    known = str(chosen) in ("auto", "off")
    number = str(chosen).isdecimal() and 1 <= int(chosen) <= _MOST_BITS
    if not (known or number):
        raise UsageError(
            f"--scale-streams takes auto, off or a number of bits from 1 to {_MOST_BITS}, "
            f"not '{chosen}'"
        )


def check_split(chosen: str | float) -> None:
    """Raise UsageError for an invalid choice of --split-gamma."""
    if str(chosen) in ("auto", "off"):
        return
    try:
        number = float(chosen)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UsageError(f"--split-gamma takes auto, off or a number from 0 to 1, not '{chosen}'")


def check_threads(name: str, count: int) -> None:
    """Raise UsageError for more threads or processes than this machine can use."""
    most = max(_THREADS_ANYWHERE, _THREADS_PER_CORE * (os.cpu_count() or 1))
    if count > most:
        raise UsageError(f"{name} must be {most} or less on this machine, not {count}")


def check_number(name: str, number: float | None) -> None:
    """Raise UsageError if the number of an option is negative or not a number."""
    if number is not None and not number >= 0:
        raise UsageError(f"{name} must be 0 or more, not {number}")


def bytes_of(gigabytes: float | None) -> int | None:
    """Return GB in bytes; raises UsageError if it is not a positive number."""
    if gigabytes is None:
        return None
    if not 0 < gigabytes < inf:
        raise UsageError(f"the memory of the check must be positive, not {gigabytes:g} GB")
    return max(1, int(gigabytes * 1e9))
