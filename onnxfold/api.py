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
from onnxfold.options import DEFAULT_SPLIT_BYTES, Options, Target
from onnxfold.passes.analysis import analyse
from onnxfold.passes.prepare.error_context import error_context
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stage_timer import Stages, StageTimer
from onnxfold.pipeline import Result, bytes_of, run
from onnxfold.report.document import inspection

__all__ = ["inspect", "optimize", "verify"]


def inspect(
    model: Any,
    *,
    target: Target | str = Target.PORTABLE,
    allow_split: int = DEFAULT_SPLIT_BYTES,
    exclude: str | None = None,
    fuse_affine: bool = True,
) -> dict[str, Any]:
    """Return what every norm of a model is, whether it folds, and otherwise why not.

    ``model`` is a path, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph.
    Raises ModelError when it cannot be read.
    """
    source, chosen = open_source(model), _target(target)
    with error_context(source):
        analysis = analyse(
            prepare(source.model).model,
            chosen,
            allow_split_bytes=allow_split,
            exclude=exclude,
            fuse_affine=fuse_affine,
            for_proof=False,
        )
    return inspection(analysis)


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
    chosen = Options(**{**options, "target": _target(options.get("target", Target.PORTABLE))})
    if chosen.check < 0:
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


def _target(name: Target | str) -> Target:
    try:
        return Target(name)
    except ValueError as error:
        names = ", ".join(target.value for target in Target)
        raise UsageError(f"there is no target '{name}'; the targets are {names}") from error
