"""Functions that write models: optimize, convert, tune and rotate."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.api.known_names import suggesting
from onnxfold.errors import UsageError
from onnxfold.model_io.load import open_source
from onnxfold.option_checks import listed
from onnxfold.options import (
    DEFAULT_INEXACT_ERROR,
    DEFAULT_NOISE_LIMIT,
    DEFAULT_RANGE_LIMIT,
    DEFAULT_SPLIT_BYTES,
    Conversion,
    Defer,
    Device,
    Folding,
    FuseAffine,
    GivenInputs,
    Options,
    WrittenForm,
    conversion_named,
    fuse_affine_named,
    member,
    target_named,
)
from onnxfold.pipeline import Result, run
from onnxfold.pipeline.error_context import error_context
from onnxfold.pipeline.stage_timer import Stages, StageTimer
from onnxfold.target import Target

if TYPE_CHECKING:
    from onnxfold.options import Metric
    from onnxfold.tuning.options import TargetPrecision
    from onnxfold.tuning.rotation_search import RotationResult
    from onnxfold.tuning.search import Listener
    from onnxfold.tuning.tune_result import TuneResult


_OPTIONS = tuple(each.name for each in fields(Options))
_CHOICES = {"device": Device, "fold": Folding, "defer": Defer, "norm_form": WrittenForm}
_SPELLINGS = (WrittenForm.OP, WrittenForm.DECOMPOSED)


@suggesting
def optimize(  # noqa: PLR0913  # each is an option of the command line
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    target: Target | str = Target.ONNX,
    device: Device | str = Device.CPU,
    fold: Folding | str = Folding.AUTO,
    norm_form: WrittenForm | str = WrittenForm.AUTO,
    allow_split: int = DEFAULT_SPLIT_BYTES,
    exclude: str | None = None,
    check: int | None = 2,
    noise_limit: float = DEFAULT_NOISE_LIMIT,
    rtol: float | None = None,
    atol: float | None = None,
    inputs: GivenInputs = (),
    seed: int = 0,
    providers: Sequence[str] = (),
    memory: float | None = None,
    save_as_external_data: bool | None = None,
    share_weights: bool = False,
    strip_metadata: bool = False,
    fuse_residual: bool = True,
    fuse_affine: FuseAffine | str | bool = FuseAffine.AUTO,
    defer: Defer | str = Defer.OFF,
    defer_means: bool = False,
    range_limit: float = DEFAULT_RANGE_LIMIT,
    scale_streams: str | int = "off",
    scale_margin: int = 3,
    drop_means: float | None = None,
    data: str | os.PathLike[str] | None = None,
    max_error: float = DEFAULT_INEXACT_ERROR,
    rotate: str = "off",
    rotation_seed: int = 0,
    split_gamma: str | float = "off",
    dry_run: bool = False,
    force: bool = False,
    fail_if_unchanged: bool = False,
    progress: Stages | None = None,
) -> Result:
    """Fold every LayerNorm that can exactly become an RMSNorm, prove and verify the result.

    ``model`` is a path, an onnx.ModelProto, an onnx_ir.Model, a torch.onnx.ONNXProgram or an
    onnx_graphsurgeon.Graph. Without ``output`` the result's ``model`` is of the same kind, or an
    onnx.ModelProto for a path; with it, it is the path that was written. The other arguments are
    the fields of :class:`Options` and the options of the command; ``inputs`` may also be an array
    or a shape for each input by name, ``{"ids": array, "mask": (1, 128)}``.

    ``drop_means`` alone makes the result inexact, as the file's metadata then say: LayerNorms that
    do not fold become RMSNorms if the mean of every vector that they read on ``data`` is at most
    that share of its length; the relative error of the outputs may be ``max_error``.

    Raises VerificationError if the result does not compute the same function (then nothing is
    written), UsageError for invalid options, ModelError if the model cannot be read or written.
    """
    chosen = _chosen(locals())
    if chosen.drop_means is None:
        return _run(model, output, chosen, progress)
    return _run_inexact(model, output, chosen, progress)


@suggesting
def convert(  # noqa: PLR0913  # each is an option of the command line
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    to: Conversion | str,
    shift: int | None = None,
    multiple_of: int = 1,
    change_readers: bool = False,
    norm_form: WrittenForm | str = WrittenForm.AUTO,
    target: Target | str = Target.ONNX,
    device: Device | str = Device.CPU,
    fold: Folding | str = Folding.AUTO,
    allow_split: int = DEFAULT_SPLIT_BYTES,
    exclude: str | None = None,
    check: int | None = 2,
    noise_limit: float = DEFAULT_NOISE_LIMIT,
    rtol: float | None = None,
    atol: float | None = None,
    inputs: GivenInputs = (),
    seed: int = 0,
    providers: Sequence[str] = (),
    memory: float | None = None,
    save_as_external_data: bool | None = None,
    share_weights: bool = False,
    strip_metadata: bool = False,
    dry_run: bool = False,
    force: bool = False,
    fail_if_unchanged: bool = False,
    progress: Stages | None = None,
) -> Result:
    """Change only the form of a model's norms; prove and verify the result.

    RMS: x = A u + b with mean 0 satisfies RMS(x) = LN(x), so weights upstream of LayerNorms are
    centered. CRMS: such a stream is stored without its last channel, x = E v, and its norms become
    CRMSNorms of v, which output all channels of x; scales before them move into the linear layers
    first. Streams of d channels stay if ``multiple_of`` does not divide d - 1, because padding
    would restore d. With ``change_readers`` norms read only by linear layers output d - 1 channels;
    the layers absorb gamma and beta and become A - 1 a', with a the last row of A, without that
    row. LAYER: an RMSNorm whose input has mean 0 by the weights becomes LayerNorm again; ``shift``
    seeds arbitrary c and d of A + 1 c' and b + d 1 in the weights upstream of LayerNorms, which
    ignore both. (Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3 and
    appendix C.)

    The other arguments are as in :func:`optimize`, without those that move gamma, beta or scales;
    ``norm_form`` is the spelling of RMS. Raises what :func:`optimize` raises, UsageError for
    ``shift`` with another form than LAYER, ``norm_form`` with another than RMS and ``multiple_of``
    or ``change_readers`` with another than CRMS.
    """
    given = locals()
    wanted = conversion_named(to)
    _check_conversion(wanted, shift, multiple_of, change_readers)
    moves = {"fuse_affine": wanted is Conversion.CRMS, "fuse_residual": False}
    chosen = _chosen(given | moves | {"convert_to": wanted})
    form = chosen.norm_form
    spells = wanted is Conversion.RMS and form is not WrittenForm.LAYER
    if form is not WrittenForm.AUTO and not spells:
        raise UsageError(f"--norm-form {form} is not for --to {wanted}, which writes no such norm")
    return _run(model, output, chosen, progress)


def _check_conversion(
    wanted: Conversion, shift: int | None, multiple_of: int, change_readers: bool
) -> None:
    """Raise UsageError for options that are not for a form of the norms."""
    if shift is not None and wanted is not Conversion.LAYER:
        raise UsageError(f"--shift is for --to layer: a norm that is {wanted} would see it")
    if shift is not None and shift < 0:
        raise UsageError(f"--shift takes a seed of 0 or more, not {shift}")
    if multiple_of < 1:
        raise UsageError(f"--multiple-of takes a number of 1 or more, not {multiple_of}")
    if multiple_of > 1 and wanted is not Conversion.CRMS:
        raise UsageError(f"--multiple-of is for --to crms: {wanted} leaves every channel")
    if change_readers and wanted is not Conversion.CRMS:
        raise UsageError(f"--change-readers is for --to crms: {wanted} leaves every channel")


def _chosen(arguments: Mapping[str, Any]) -> Options:
    """Return the options among a function's arguments, with names read.

    Raises UsageError for conflicting ones.
    """
    options = {name: arguments[name] for name in _OPTIONS if name in arguments}
    options |= {
        name: member(kind, options[name], f"{name} '{options[name]}'")
        for name, kind in _CHOICES.items()
        if name in options
    }
    options["target"] = target_named(options["target"])
    options["fuse_affine"] = fuse_affine_named(options["fuse_affine"])
    options["providers"] = listed(options["providers"])
    if isinstance(options["inputs"], Mapping):
        options["inputs"] = dict(options["inputs"])
    chosen = Options(**options)
    if chosen.device is Device.CUDA and not chosen.target.traits.contrib:
        raise UsageError("--device cuda is for --target ort; the other files suit every device")
    if chosen.target.traits.contrib and chosen.norm_form in _SPELLINGS:
        raise UsageError(f"--norm-form {chosen.norm_form} is for --target onnx and kernels")
    return chosen


def _run(
    model: Any, output: str | os.PathLike[str] | None, chosen: Options, progress: Stages | None
) -> Result:
    """Load a model, run the chosen passes, return or write the result."""
    _check_late_options(chosen)
    timer = StageTimer(progress)
    if output is not None and not chosen.dry_run:
        source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
        model_io.check_destination(output, source=source_path, force=chosen.force)
        model_io.check_replaceable(output, source=source_path, force=chosen.force)
    with timer.stage("load"):
        source = open_source(model)
        if output is not None and not chosen.dry_run:
            model_io.read_ahead(source.model)
    if source.path is not None and output is None and not chosen.dry_run:
        model_io.check_embeddable(source.model)  # the result is returned in memory
    if chosen.share_weights and output is not None:
        if chosen.save_as_external_data is False:
            raise UsageError("shared weights are external data, which the model must not have")
        model_io.check_sharing(source.model, source.path, output)
    # Weights may contain inf and NaN; the results are compared with the original.
    with np.errstate(all="ignore"), error_context(source):
        _check_given_inputs(source.model, chosen)
        return run(source, output, chosen, timer)


def _run_inexact(
    model: Any, output: str | os.PathLike[str] | None, chosen: Options, progress: Stages | None
) -> Result:
    """Do all that is exact, then drop the means that are small on data."""
    from onnxfold.geometry.small_means import check_together, drop_means

    check_together(chosen)
    if output is not None:
        source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
        model_io.check_destination(output, source=source_path, force=chosen.force)
        model_io.check_replaceable(output, source=source_path, force=chosen.force)
    asked = chosen.scale_streams != "off" or chosen.split_gamma != "off"
    data = chosen.data if asked else None
    exact = _run(model, None, replace(chosen, drop_means=None, data=data), progress)
    timer = StageTimer(progress, dict(exact.report["timing_s"]))
    source = open_source(model)
    with np.errstate(all="ignore"), error_context(source):
        return drop_means(exact, source, output, chosen, timer)


def _check_given_inputs(model: ir.Model, chosen: Options) -> None:
    """Raise UsageError, before the work, for inputs that the model lacks or that do not fit."""
    if chosen.inputs:
        from onnxfold.inputs import InputSpec, check_inputs

        check_inputs(model, InputSpec.of(chosen.inputs))


def _check_late_options(chosen: Options) -> None:
    """Raise UsageError, before the work, for options used only by the check."""
    if chosen.inputs:
        from onnxfold.inputs import InputSpec

        InputSpec.of(chosen.inputs)
    if chosen.providers:
        from onnxfold.check.runners import OnnxRuntime

        OnnxRuntime.of(chosen.providers)


# Arguments of the functions here that are not options.
_NOT_OPTIONS = frozenset({"model", "output", "progress"})


@suggesting
def tune(  # noqa: PLR0913  # each is an option of the command line
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    device: Device | str = Device.CPU,
    threads: int = 1,
    precision: "Sequence[TargetPrecision | str] | TargetPrecision | str" = "fp32",
    inputs: GivenInputs = (),
    data: str | os.PathLike[str] | None = None,
    samples: int = 2,
    seed: int = 0,
    budget: float = 600.0,
    step_seconds: float = 300.0,
    memory: float | None = None,
    metric: "Metric | str | None" = None,
    max_error: float | None = None,
    kernels: bool = True,
    chains: Sequence[str] = (),
    model_type: str | None = None,
    num_heads: int | None = None,
    hidden_size: int | None = None,
    jobs: int = 1,
    keep_candidates: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: "Listener | None" = None,
) -> "TuneResult":
    """Try chains of tools, check each result against a float64 run, and write the fastest.

    The options are the fields of :class:`onnxfold.tuning.options.TuneOptions`, and ``precision``:
    "fp32" keeps the model's own; "fp16", "bf16", "int8" and "int4" have an error budget; several
    may be given. Raises VerificationError if no requested candidate is correct (then nothing is
    written, and its ``result`` has every candidate), UsageError for invalid options, ModelError for
    a model that no session accepts.
    """
    given = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS}
    from onnxfold.tuning import tuner as tuning
    from onnxfold.tuning.options import tune_options

    return tuning.tune(model, output, tune_options(**given), progress)


@suggesting
def rotate(  # noqa: PLR0913  # each is an option of the command line
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str = "int8",
    matrix: str = "hadamard",
    seeds: int = 4,
    data: str | os.PathLike[str] | None = None,
    inputs: GivenInputs = (),
    samples: int = 4,
    seed: int = 0,
    allow_split: int = 1 << 30,
    force: bool = False,
) -> "RotationResult":
    """Write the model in the basis that a quantizer loses least by, or as it is.

    ``to``: "int8", "int8-channel" or "int4", what the file will be quantized to; ``seeds``: how
    many matrices are tried, on ``data`` or on ``samples`` drawn inputs.  Raises ModelError where no
    stream can be rotated (then nothing is written), UsageError for options that make no sense,
    DataError for data that does not suit the model.
    """
    given = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS}
    from onnxfold.tuning.options import RotationOptions
    from onnxfold.tuning.rotation_search import search

    chosen = RotationOptions(**given | {"data": None if data is None else Path(data)})
    return search(model, output, chosen)
