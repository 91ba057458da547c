"""Functions that read models and change nothing: inspect, diff, measure."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxfold.api.known_names import suggesting
from onnxfold.model_io.sources import open_source
from onnxfold.option_checks import bytes_of, listed
from onnxfold.options import (
    DEFAULT_SPLIT_BYTES,
    Defer,
    Folding,
    FuseAffine,
    fuse_affine_named,
    member,
    target_named,
)
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import decide_all, unwanted
from onnxfold.pipeline.error_context import error_context
from onnxfold.pipeline.stage_timer import Stages, StageTimer
from onnxfold.report.before_after import before_and_after
from onnxfold.report.document import inspection
from onnxfold.report.inspection import Inspection
from onnxfold.report.nodes import node_changes, node_rows
from onnxfold.report.stored_twice import stored_twice
from onnxfold.shapes import infer
from onnxfold.shapes.claims import check_claims
from onnxfold.target import Target


@suggesting
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
    paper: bool = False,
) -> Inspection:
    """Return the kind of every norm of a model, whether it folds, and otherwise why not.

    ``model`` is a path, an onnx.ModelProto, an onnx_ir.Model, a torch.onnx.ONNXProgram or an
    onnx_graphsurgeon.Graph. ``nodes``: list every node too; ``paper``: count by the rules of a
    paper too, as ``algorithm1``, ``algorithm1_embed_centred`` and ``d2`` of the summary. Raises
    ModelError if it cannot be read.
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
        paper=paper,
    )
    with error_context(source):
        known = check_claims(source.model)
        prepared = prepare(
            known.model,
            compressed=True,
            deferred=True,
            inferred=True,
            allow_split=settings.allow_split,
        )
        decided = decide_all(prepared, settings, without=unwanted(settings))
        listed = {"nodes": node_rows(known.model)} if nodes else {}
        twice = stored_twice(source.model)
    document = inspection(
        decided.findings, known.claims, settings.excluded, prepared.unsplit, twice
    )
    return Inspection(document | listed)


@suggesting
def diff(first: Any, second: Any, *, sessions: bool = True, nodes: bool = False) -> dict[str, Any]:
    """Return two models in numbers: operators, parameters, bytes, and what norms cost.

    Both are models as for :func:`optimize`. ``sessions``: also count what ONNX Runtime executes, if
    both are paths and it is installed. ``nodes``: list the nodes and weights that differ. Raises
    ModelError if a model cannot be read.
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


@suggesting
def measure(  # noqa: PLR0913  # each is an option of the command line
    model: Any,
    data: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    threads: int = 1,
    providers: Sequence[str] = (),
    memory: float | None = None,
    skip_bad: bool = False,
    resume: str | os.PathLike[str] | None = None,
    ray: str | None = None,
    batch: int = 8,
    rows: int | None = None,
    length: int = 128,
    column: str = "text",
    tokenizer: str | os.PathLike[str] | None = None,
    mask: str | None = None,
    seed: int = 0,
    progress: Stages | None = None,
) -> dict[str, Any]:
    """Return angles, lengths and means of the inputs and outputs of every norm over data.

    ``data`` is a file or folder (docs/geometry.md), or None for synthetic inputs; ``batch`` to
    ``seed`` are the fields of :class:`onnxfold.inputs.data.DataOptions` for reading it. The result
    does not depend on ``workers``, nor on ``ray``, the address of a cluster for them ("local"
    starts one). Angles are in degrees. Raises UsageError for invalid options, DataError for data
    that cannot be read or does not fit the model, ModelError for a model that cannot be run or
    lacks norms.
    """
    from onnxfold.geometry.measurement import Measuring, measured
    from onnxfold.inputs.data import DataOptions

    reading = DataOptions(
        batch=batch,
        rows=rows,
        length=length,
        column=column,
        tokenizer=None if tokenizer is None else Path(tokenizer),
        mask=mask,
        seed=seed,
    )
    wanted = Measuring(
        reading=reading,
        workers=workers,
        threads=threads,
        providers=listed(providers),
        memory_bytes=bytes_of(memory),
        skip_bad=skip_bad,
        resume=None if resume is None else Path(resume),
        ray=ray,
    )
    with StageTimer(progress).stage("load"):
        source = open_source(model)
    with error_context(source):
        return measured(source, None if data is None else Path(data), wanted, progress)
