"""The Python interface: optimize, inspect and verify, for every kind of model that it takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold import model_io
from onnxfold.check import ModelSource, Verification
from onnxfold.errors import UsageError
from onnxfold.model_io.sources import open_source
from onnxfold.options import DEFAULT_SPLIT_BYTES, Device, Options, Target, WrittenForm, target_named
from onnxfold.passes.base import Settings, exclusion
from onnxfold.passes.prepare.error_context import error_context
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, Result, bytes_of, decide_all, run
from onnxfold.pipeline.stage_timer import Stages, StageTimer
from onnxfold.report.document import inspection
from onnxfold.shapes.claims import unconfirmed_claims

__all__ = ["inspect", "measure", "optimize", "verify"]

_SPELLINGS = (WrittenForm.OP, WrittenForm.DECOMPOSED)


def inspect(
    model: Any,
    *,
    target: Target | str = Target.ONNX,
    allow_split: int = DEFAULT_SPLIT_BYTES,
    exclude: str | None = None,
    fuse_affine: bool = True,
) -> dict[str, Any]:
    """Return what every norm of a model is, whether it folds, and otherwise why not.

    ``model`` is a path, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph.
    Raises ModelError when it cannot be read.
    """
    source = open_source(model)
    settings = Settings(target_named(target), allow_split, exclusion(exclude))
    without = () if fuse_affine else AFFINE_PASSES
    with error_context(source):
        claims = unconfirmed_claims(source.model)
        decided = decide_all(prepare(source.model), settings, without=without)
    return inspection(decided.findings, claims)


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
    progress: Stages | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Return angles, lengths and means of what every norm of a model reads and writes over data.

    ``data`` is a file or folder (docs/geometry.md), or None for made-up inputs; ``reading`` are
    the fields of :class:`onnxfold.geometry.data.DataOptions`.  The result does not depend on
    ``workers``.  Angles are in degrees.  Raises UsageError for options that make no sense,
    DataError for data that cannot be read or does not suit the model, ModelError for a model that
    cannot be run or has no norm.
    """
    from onnxfold.geometry import Measuring, measured
    from onnxfold.geometry.data import DataOptions

    wanted = Measuring(
        reading=DataOptions(**reading),
        workers=workers,
        threads=threads,
        providers=tuple(providers),
        memory_bytes=bytes_of(memory),
        skip_bad=skip_bad,
        resume=None if resume is None else Path(resume),
    )
    with StageTimer(progress).stage("load"):
        source = open_source(model)
    with error_context(source):
        return measured(source, None if data is None else Path(data), wanted, progress)


def verify(
    original: Any,
    rewritten: Any,
    *,
    inputs: tuple[str, ...] = (),
    providers: tuple[str, ...] = (),
    memory: float | None = None,
    progress: Stages | None = None,
    **options: Any,
) -> Verification:
    """Check that ``rewritten`` computes what ``original`` does, relative to its rounding error.

    Both are what :func:`optimize` takes.  ``inputs`` are as on the command line (``ids:1,128``);
    ``memory`` is how many GB the comparison may take, by default most of what is free; ``options``
    are samples, seed, limit, rtol and atol.  Raises ModelError when a model cannot be read or run;
    a difference is no error but a result whose ``passed`` is False.
    """
    from onnxfold.check.compare import verify as compare
    from onnxfold.inputs import InputSpec

    sources = [open_source(model) for model in (original, rewritten)]
    with error_context(sources[0]):
        return compare(
            *(ModelSource(source.model, source.path) for source in sources),
            spec=InputSpec.parse(inputs) if inputs else None,
            providers=providers or None,
            memory_bytes=bytes_of(memory),
            progress=StageTimer(progress).part("verify"),
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
    named = {
        "target": target_named(options.get("target", Target.ONNX)),
        "device": Device(options.get("device", Device.CPU)),
        "norm_form": WrittenForm(options.get("norm_form", WrittenForm.AUTO)),
    }
    chosen = Options(**{**options, **named})
    if chosen.device is Device.CUDA and chosen.target is not Target.ORT:
        raise UsageError("--device cuda is for --target ort; the other files suit every device")
    if chosen.target is Target.ORT and chosen.norm_form in _SPELLINGS:
        raise UsageError(f"--norm-form {chosen.norm_form} is for --target onnx and kernels")
    if chosen.check is not None and chosen.check < 0:
        raise UsageError(f"check must be 0 or more samples, not {chosen.check}")
    timer = StageTimer(progress)
    if output is not None and not chosen.dry_run:
        source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
        model_io.check_destination(output, source=source_path, force=chosen.force)
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
        return run(source, output, chosen, timer)
