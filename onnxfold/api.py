"""The Python interface: a function for each command, for every kind of model that it takes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check import BudgetVerification, ModelSource, Verification
from onnxfold.errors import UsageError
from onnxfold.model_io.sources import open_source
from onnxfold.options import (
    DEFAULT_SPLIT_BYTES,
    Conversion,
    Defer,
    Device,
    Folding,
    FuseAffine,
    Options,
    Target,
    WrittenForm,
    bytes_of,
    conversion_named,
    fuse_affine_named,
    member,
    target_named,
)
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import Result, decide_all, run, unwanted
from onnxfold.pipeline.error_context import error_context
from onnxfold.pipeline.stage_timer import Stages, StageTimer
from onnxfold.report.before_after import before_and_after
from onnxfold.report.document import inspection
from onnxfold.report.nodes import node_changes, node_rows
from onnxfold.shapes import infer
from onnxfold.shapes.claims import check_claims

if TYPE_CHECKING:
    from onnxfold.tuning.options import TuneOptions
    from onnxfold.tuning.search import Listener
    from onnxfold.tuning.tune_result import TuneResult

_CHOICES = {"device": Device, "fold": Folding, "defer": Defer, "norm_form": WrittenForm}
_SPELLINGS = (WrittenForm.OP, WrittenForm.DECOMPOSED)


def inspect(  # noqa: PLR0913  # each is an option of the command line
    model: Any,
    *,
    target: Target | str = Target.ONNX,
    allow_split: int = DEFAULT_SPLIT_BYTES,
    exclude: str | None = None,
    fuse_affine: FuseAffine | str | bool = FuseAffine.AUTO,
    defer: Defer | str = Defer.OFF,
    defer_means: bool = False,
    fold: Folding | str = Folding.AUTO,
    nodes: bool = False,
) -> dict[str, Any]:
    """Return what every norm of a model is, whether it folds, and otherwise why not.

    ``model`` is a path, an onnx.ModelProto, an onnx_ir.Model, a torch.onnx.ONNXProgram or an
    onnx_graphsurgeon.Graph.  ``nodes``: list every node too.  Raises ModelError when it cannot be
    read.
    """
    source = open_source(model)
    settings = Settings(
        target_named(target),
        allow_split=allow_split,
        exclude=exclude,
        fuse_affine=fuse_affine_named(fuse_affine),
        defer=member(Defer, defer, f"defer '{defer}'"),
        defer_means=defer_means,
        fold=member(Folding, fold, f"fold '{fold}'"),
    )
    with error_context(source):
        known = check_claims(source.model)
        prepared = prepare(known.model, compressed=True, deferred=True, inferred=True)
        decided = decide_all(prepared, settings, without=unwanted(settings))
        listed = {"nodes": node_rows(known.model)} if nodes else {}
    return inspection(decided.findings, known.claims, settings.excluded, prepared.unsplit) | listed


def diff(first: Any, second: Any, *, sessions: bool = True, nodes: bool = False) -> dict[str, Any]:
    """Return two models in numbers: operators, parameters, bytes, and what norms cost.

    Both are what :func:`optimize` takes.  ``sessions``: count what ONNX Runtime makes of them too,
    where both are paths and it is installed.  ``nodes``: list the nodes and weights that differ.
    Raises ModelError when a model cannot be read.
    """
    sources = [open_source(model) for model in (first, second)]
    paths = [source.path for source in sources if source.path is not None]
    both = (paths[0], paths[1]) if sessions and len(paths) == len(sources) else None
    with error_context(sources[0]):
        document = before_and_after(sources[0].model, sources[1].model, both)
        if nodes:
            document["changes"] = node_changes(*(_typed(source.model) for source in sources))
    return document


def _typed(model: ir.Model) -> ir.Model:
    """Return a copy with the types and shapes that can be known."""
    return infer(model.clone()).model


def measure(  # noqa: PLR0913  # each is an option of the command line
    model: Any,
    data: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    threads: int = 1,
    providers: tuple[str, ...] = (),
    memory: float | None = None,
    skip_bad: bool = False,
    resume: str | os.PathLike[str] | None = None,
    ray: str | None = None,
    progress: Stages | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Return angles, lengths and means of what every norm of a model reads and writes over data.

    ``data`` is a file or folder (docs/geometry.md), or None for made-up inputs; ``reading`` are
    the fields of :class:`onnxfold.inputs.data.DataOptions`.  The result does not depend on
    ``workers``, nor on ``ray``, the address of the cluster whose they are ("local" starts one).
    Angles are in degrees.  Raises UsageError for options that make no sense, DataError for data
    that cannot be read or does not suit the model, ModelError for a model that cannot be run or has
    no norm.
    """
    from onnxfold.geometry import Measuring, measured
    from onnxfold.inputs.data import DataOptions

    wanted = Measuring(
        reading=DataOptions(**reading),
        workers=workers,
        threads=threads,
        providers=tuple(providers),
        memory_bytes=bytes_of(memory),
        skip_bad=skip_bad,
        resume=None if resume is None else Path(resume),
        ray=ray,
    )
    with StageTimer(progress).stage("load"):
        source = open_source(model)
    with error_context(source):
        return measured(source, None if data is None else Path(data), wanted, progress)


def verify(  # noqa: PLR0913  # each is an option of the command line
    original: Any,
    rewritten: Any,
    *,
    inputs: tuple[str, ...] = (),
    providers: tuple[str, ...] = (),
    memory: float | None = None,
    samples: int | None = None,
    data: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    metric: str | Sequence[str] = (),
    max_error: float | Sequence[float] = (),
    blame: bool = False,
    progress: Stages | None = None,
    **options: Any,
) -> Verification | BudgetVerification:
    """Check that ``rewritten`` computes what ``original`` does, relative to its rounding error.

    Both are what :func:`optimize` takes.  ``inputs`` are as on the command line (``ids:1,128``);
    ``memory`` is how many GB the comparison may take, by default most of what is free; ``data`` is
    a file or folder whose first ``rows`` rows (32) both run on besides ``samples`` drawn ones.
    With ``metric`` (relative, cosine, top1, kl, or several) an error budget decides instead:
    ``max_error``, or what is usual for the precision of ``rewritten`` (docs/verify.md); inputs are
    then drawn only where there is no data, or ``samples`` are asked for.  ``blame``: name the nodes
    at fault on failure.  ``options`` are seed, limit, rtol and atol.  Raises ModelError when a
    model cannot be read or run, VerificationError where ``rewritten`` is no counterpart or does not
    run; a difference is no error but a result whose ``passed`` is False.
    """
    from onnxfold.check.compare import verify as compare
    from onnxfold.check.compare import verify_within
    from onnxfold.check.precisions import chosen_budget, precision_of
    from onnxfold.check.traps import check_order
    from onnxfold.inputs import InputSpec

    metrics = [metric] if isinstance(metric, str) else [*metric]
    limits = [max_error] if isinstance(max_error, int | float) else [*max_error]
    _check_metrics(metrics, limits, rows if data is None else None, options)
    sources = [open_source(model) for model in (original, rewritten)]
    if sources[1].path is not None:
        check_order(sources[1].path)
    first, second = (ModelSource(source.model, source.path) for source in sources)
    given: dict[str, Any] = {
        "spec": InputSpec.parse(inputs) if inputs else None,
        "providers": providers or None,
        "memory_bytes": bytes_of(memory),
        "progress": StageTimer(progress).part("verify"),
        "samples": (0 if metrics and data is not None else 2) if samples is None else samples,
        "find_blame": blame,
        **{name: value for name, value in options.items() if value is not None},
    }
    with error_context(sources[0]):
        label = None
        if data is not None:
            from onnxfold.inputs.data.samples import DEFAULT_ROWS, read_samples

            model, path = sources[0].model, sources[0].path
            read = read_samples(Path(data), model, path, DEFAULT_ROWS if rows is None else rows)
            given["data"], label = read.feeds, read.label
        if metrics:
            budget = chosen_budget(metrics, limits, second.model)
            return replace(verify_within(first, second, budget, **given), data=label)
        verification = compare(first, second, **given)
        precisions = [precision_of(source.model) for source in (first, second)]
        notes = verification.notes
        if not verification.passed and precisions[0] != precisions[1]:
            notes += (f"B is in {precisions[1]}: --metric lets an error budget decide",)
        return replace(verification, notes=notes, data=label)


def _check_metrics(
    metrics: Sequence[str], limits: Sequence[float], rows: int | None, options: Mapping[str, Any]
) -> None:
    """Raise UsageError for options of a verification that have no meaning together."""
    if limits and not metrics:
        raise UsageError("--max-error needs --metric, which says what it limits")
    if rows is not None:
        raise UsageError("--rows needs --data")
    for name in ("rtol", "atol", "limit"):
        if metrics and options.get(name) is not None:
            raise UsageError(f"--{name} is not for --metric, whose limit is --max-error")


def tune(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    progress: "Listener | None" = None,
    **options: Any,
) -> "TuneResult":
    """Try chains of tools, check each result against a float64 run, and write the fastest.

    ``options`` are the fields of :class:`onnxfold.tuning.options.TuneOptions`, and ``precision``:
    "fp32" keeps the model's own; "fp16", "int8" and "int4" have an error budget; several may be
    given.  Raises VerificationError where nothing of what was asked for is right (then nothing is
    written, and its ``result`` has every candidate), UsageError for options that make no sense,
    ModelError for a model that no session takes.
    """
    from onnxfold.tuning import tuner as tuning

    return tuning.tune(model, output, tune_options(**options), progress)


def tune_options(
    *,
    device: Device | str = Device.CPU,
    precision: Sequence[str] | str = "fp32",
    data: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    keep_candidates: str | os.PathLike[str] | None = None,
    **options: Any,
) -> "TuneOptions":
    """Return the options of :func:`tune` with names read; raises UsageError as that does."""
    from onnxfold.check.error_metrics import Metric
    from onnxfold.tuning.options import TuneOptions, precision_named

    names = (precision,) if isinstance(precision, str) else tuple(precision)
    return TuneOptions(
        device=member(Device, device, f"device '{device}'"),
        precisions=tuple(dict.fromkeys(map(precision_named, names))),
        data=None if data is None else Path(data),
        metric=None if metric is None else member(Metric, metric, f"metric '{metric}'"),
        keep_candidates=None if keep_candidates is None else Path(keep_candidates),
        **options,
    )


def optimize(
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Stages | None = None,
    **options: Any,
) -> Result:
    """Fold every LayerNorm that can exactly become an RMSNorm, prove and verify the result.

    ``options`` are the fields of :class:`Options`.  Raises VerificationError when the result does
    not compute the same function (then nothing is written), UsageError for options that make no
    sense, ModelError when the model cannot be read or written.
    """
    return _run(model, output, _chosen(options), progress)


def convert(
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    to: Conversion | str,
    shift: int | None = None,
    multiple_of: int = 1,
    change_readers: bool = False,
    progress: Stages | None = None,
    **options: Any,
) -> Result:
    """Give the norms of a model another form and change nothing else; prove and verify the result.

    RMS: x = A u + b with mean 0 has RMS(x) = LN(x), so weights before LayerNorms are centred.
    CRMS: such a stream is stored without its last channel, x = E v, and its norms are CRMSNorms of
    v, which give all channels of x; scales before them move into the linear layers first.  Streams
    of d channels stay where ``multiple_of`` does not divide d - 1: padding would give d again.
    With ``change_readers`` norms give d - 1 channels where only linear layers read them, which take
    gamma, beta and A - 1 a', a the last row of A, without that row.
    LAYER: an RMSNorm whose input has mean 0 by the weights becomes LayerNorm again; ``shift`` seeds
    arbitrary c and d of A + 1 c' and b + d 1 in the weights before LayerNorms, which see neither.
    (Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3 and appendix C.)

    ``options`` are those of :func:`optimize` that move no gamma, beta or scale; ``norm_form`` is
    how RMS is written.  Raises what :func:`optimize` raises, UsageError for ``shift`` with another
    form than LAYER, ``norm_form`` with another than RMS and ``multiple_of`` or ``change_readers``
    with another than CRMS.
    """
    wanted = conversion_named(to)
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
    moves = {"fuse_affine": wanted is Conversion.CRMS, "fuse_residual": False, "shift": shift}
    compression = {"multiple_of": multiple_of, "change_readers": change_readers}
    chosen = _chosen({**options, "convert_to": wanted, **moves, **compression})
    form = chosen.norm_form
    spells = wanted is Conversion.RMS and form is not WrittenForm.LAYER
    if form is not WrittenForm.AUTO and not spells:
        raise UsageError(f"--norm-form {form} is not for --to {wanted}, which writes no such norm")
    return _run(model, output, chosen, progress)


def _chosen(options: Mapping[str, Any]) -> Options:
    """Return the options with names read; raises UsageError for what makes no sense together."""
    named = {
        "target": target_named(options.get("target", Target.ONNX)),
        "fuse_affine": fuse_affine_named(options.get("fuse_affine", FuseAffine.AUTO)),
        **{
            name: member(kind, options[name], f"{name} '{options[name]}'")
            for name, kind in _CHOICES.items()
            if name in options
        },
    }
    chosen = Options(**{**options, **named})
    if chosen.device is Device.CUDA and chosen.target is not Target.ORT:
        raise UsageError("--device cuda is for --target ort; the other files suit every device")
    if chosen.target is Target.ORT and chosen.norm_form in _SPELLINGS:
        raise UsageError(f"--norm-form {chosen.norm_form} is for --target onnx and kernels")
    return chosen


def _run(
    model: Any, output: str | os.PathLike[str] | None, chosen: Options, progress: Stages | None
) -> Result:
    """Load a model, run the passes that are chosen, give the result back or write it."""
    _check_late_options(chosen)
    timer = StageTimer(progress)
    if output is not None and not chosen.dry_run:
        source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
        model_io.check_format(output)
        model_io.check_destination(output, source=source_path, force=chosen.force)
        model_io.check_replaceable(output, source=source_path, force=chosen.force)
    with timer.stage("load"):
        source = open_source(model)
        if output is not None and not chosen.dry_run:
            model_io.read_ahead(source.model)
    if source.path is not None and output is None and not chosen.dry_run:
        raise UsageError(f"say where to write the result of '{source.path}' (-o OUT)")
    if chosen.share_weights and output is not None:
        if chosen.save_as_external_data is False:
            raise UsageError("shared weights are external data, which the model must not have")
        model_io.check_sharing(source.model, source.path, output)
    # Weights may hold inf and NaN; what comes of them is compared with the original.
    with np.errstate(all="ignore"), error_context(source):
        _check_given_inputs(source.model, chosen)
        return run(source, output, chosen, timer)


def _check_given_inputs(model: ir.Model, chosen: Options) -> None:
    """Raise UsageError, before the work, for inputs that the model does not have, or not so."""
    if chosen.inputs:
        from onnxfold.inputs import InputSpec, check_inputs

        check_inputs(model, InputSpec.parse(chosen.inputs))


def _check_late_options(chosen: Options) -> None:
    """Raise UsageError, before the work, for what is not used until the check."""
    if chosen.inputs:
        from onnxfold.inputs import InputSpec

        InputSpec.parse(chosen.inputs)
    if chosen.providers:
        from onnxfold.check.runners import OnnxRuntime

        OnnxRuntime.of(chosen.providers)
