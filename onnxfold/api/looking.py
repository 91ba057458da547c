"""Functions that change nothing: inspect, diff, measure, verify and bench."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.api.known_names import suggesting
from onnxfold.check import BudgetVerification, Verification
from onnxfold.errors import UsageError
from onnxfold.model_io.load import open_source
from onnxfold.option_checks import bytes_of, listed
from onnxfold.options import (
    DEFAULT_SPLIT_BYTES,
    Defer,
    Folding,
    FuseAffine,
    GivenInputs,
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
from onnxfold.report.document import inspection, stored_twice
from onnxfold.report.inspection import Inspection, node_changes, node_rows
from onnxfold.shapes import infer
from onnxfold.shapes.claims import check_claims
from onnxfold.target import Target
from onnxfold.wording import worded

if TYPE_CHECKING:
    from onnxfold.runtime.bench import Benchmark


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


@suggesting
def verify(  # noqa: PLR0913  # each is an option of the command line
    original: Any,
    rewritten: Any,
    *,
    inputs: GivenInputs = (),
    providers: Sequence[str] = (),
    memory: float | None = None,
    samples: int | None = None,
    data: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    metric: str | Sequence[str] = (),
    max_error: float | Sequence[float] = (),
    blame: bool = False,
    seed: int = 0,
    limit: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Stages | None = None,
) -> Verification | BudgetVerification:
    """Check that ``rewritten`` computes what ``original`` does, relative to its rounding error.

    Both are models as for :func:`optimize`, and so are ``inputs``; ``memory`` is how many GB the
    comparison may use, by default most of what is free; ``data`` is a file or folder whose first
    ``rows`` rows (32) both run on in addition to ``samples`` drawn ones. With ``metric`` (relative,
    cosine, top1, kl, or several) an error budget decides instead: ``max_error``, or the default for
    the precision of ``rewritten`` (docs/verify.md); inputs are then drawn only without data, or if
    ``samples`` is given. ``blame``: name the nodes at fault on failure. ``limit`` is the allowed
    multiple of the original's own rounding error; ``rtol`` and ``atol`` are additional bounds.
    Raises ModelError if a model cannot be read or run, VerificationError if ``rewritten`` has
    another interface or does not run. A difference is not an error: the result has ``passed``
    False.
    """
    from onnxfold.check.budget import chosen_budget, precision_of
    from onnxfold.check.compare import verify as compare
    from onnxfold.check.compare import verify_within
    from onnxfold.check.traps import check_order
    from onnxfold.inputs import InputSpec

    metrics = [metric] if isinstance(metric, str) else [*metric]
    limits = [max_error] if isinstance(max_error, int | float) else [*max_error]
    bounds = {"limit": limit, "rtol": rtol, "atol": atol}
    _check_metrics(metrics, limits, rows if data is None else None, bounds)
    first, second = open_source(original), open_source(rewritten)
    if second.path is not None:
        check_order(second.path)
    given: dict[str, Any] = {
        "spec": InputSpec.of(inputs) if inputs else None,
        "providers": listed(providers) or None,
        "memory_bytes": bytes_of(memory),
        "progress": StageTimer(progress).part("verify"),
        "samples": (0 if metrics and data is not None else 2) if samples is None else samples,
        "find_blame": blame,
        "seed": seed,
        **{name: bound for name, bound in bounds.items() if bound is not None},
    }
    with error_context(first):
        label = None
        if data is not None:
            from onnxfold.inputs.data.samples import DEFAULT_ROWS, read_samples

            count = DEFAULT_ROWS if rows is None else rows
            read = read_samples(Path(data), first.model, first.path, count)
            given["data"], label = read.feeds, read.label
        if metrics:
            budget = chosen_budget(metrics, limits, second.model)
            return replace(verify_within(first, second, budget, **given), data=label)
        verification = compare(first, second, **given)
        precisions = [precision_of(source.model) for source in (first, second)]
        notes = verification.notes
        if not verification.passed and precisions[0] != precisions[1]:
            notes += (worded(f"B is in {precisions[1]}: --metric lets an error budget decide"),)
        return replace(verification, notes=notes, data=label)


def _check_metrics(
    metrics: Sequence[str],
    limits: Sequence[float],
    rows: int | None,
    bounds: Mapping[str, float | None],
) -> None:
    """Raise UsageError for options of a verification that conflict."""
    if limits and not metrics:
        raise UsageError("--max-error needs --metric, which says what it limits")
    if rows is not None:
        raise UsageError("--rows needs --data")
    for name, bound in bounds.items():
        if metrics and bound is not None:
            raise UsageError(f"--{name} is not for --metric, whose limit is --max-error")


@suggesting
def bench(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *others: str | os.PathLike[str],
    rounds: int = 30,
    threads: int = 1,
    inputs: GivenInputs = (),
    seed: int = 0,
    providers: Sequence[str] = (),
    progress: Stages | None = None,
) -> "Benchmark":
    """Time model files against each other in ONNX Runtime, with and without onnxfold's kernels.

    ``others`` are compared with the first; runs are interleaved, and all get the same ``inputs``,
    as for :func:`optimize`. Raises UsageError for invalid options, ModelError if a model cannot be
    read or run, OnnxfoldError without onnxruntime.
    """
    from onnxfold.runtime.bench import bench as timed

    first = [models] if isinstance(models, str | os.PathLike) else [*models]
    return timed(
        [*first, *others],
        rounds=rounds,
        threads=threads,
        inputs=inputs,
        seed=seed,
        providers=listed(providers),
        progress=progress,
    )
