"""optimize: the stages in order; the only place where they meet.

    load -> prepare -> analyse -> rewrite -> prove -> stage -> verify -> publish

The input is never changed.  Nothing is published before the proof and the verification passed.
What proves and verifies is imported when it is used, for a run without it is to start quickly.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.analysis import DEFAULT_SPLIT_BYTES, Analysis, analyse
from onnxfold.clock import Clock, Stages
from onnxfold.diagnosis import diagnosed
from onnxfold.errors import (
    AffineCheckError,
    UnchangedError,
    UnfitWeightError,
    UsageError,
    VerificationError,
)
from onnxfold.folding import fold
from onnxfold.lower.target import Target
from onnxfold.options import Options
from onnxfold.planning import Plan
from onnxfold.prepare import Prepared, prepare
from onnxfold.report import inspection
from onnxfold.rewrite import unfit_weights
from onnxfold.sources import Source, open_source
from onnxfold.verification import ModelSource, Verification

if TYPE_CHECKING:
    from onnxfold.proof import Proof

__all__ = ["Options", "Result", "Stages", "inspect", "optimize", "verify"]


@dataclass(frozen=True, slots=True)
class Result:
    """What optimize did.

    ``model`` is of the kind that was given: a path, an onnx.ModelProto, an onnx_ir.Model or an
    onnx_graphsurgeon.Graph; None after a dry run.
    """

    model: Any
    changed: bool
    plan: Plan
    report: dict[str, Any]
    proof: Proof | None = None
    verification: Verification | None = None


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
    with diagnosed(source):
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
    from onnxfold.inputs import InputSpec
    from onnxfold.verification.compare import verify as compare

    sources = [open_source(model) for model in (original, rewritten)]
    with diagnosed(sources[0]):
        return compare(
            *(ModelSource(source.model, source.path) for source in sources),
            spec=InputSpec.parse(inputs) if inputs else None,
            providers=providers or None,
            memory_bytes=_bytes(memory),
            progress=Clock(progress).part("verify"),
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
    clock = Clock(progress)
    if output is not None and not chosen.dry_run:
        source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
        model_io.check_destination(output, source=source_path, force=chosen.force)
    with clock.stage("load"):
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
    with np.errstate(all="ignore"), diagnosed(source):
        return _attempts(source, output, chosen, clock)


def _attempts(
    source: Source, output: str | os.PathLike[str] | None, chosen: Options, clock: Clock
) -> Result:
    """Run every stage behind loading; again without the weights, or the moves, that cannot be."""
    unfit: frozenset[str] = frozenset()
    left_out: str | None = None
    while True:
        try:
            result = _attempt(source, output, chosen, clock, unfit)
        except (AffineCheckError, UnfitWeightError) as error:
            found = frozenset[str]()
            if isinstance(error, UnfitWeightError):
                again = _analysed(prepare(source.model), chosen, unfit)
                found = unfit_weights(again.view, again.plan)
            if not found and not chosen.fuse_affine:
                raise
            if not found:
                chosen, left_out = replace(chosen, fuse_affine=False), str(error)
            unfit |= found
        else:
            if left_out is not None:
                result.report["affine_left_out"] = left_out
            return result


def _attempt(
    source: Source,
    output: str | os.PathLike[str] | None,
    chosen: Options,
    clock: Clock,
    unfit: frozenset[str],
) -> Result:
    """Run every stage behind loading; weights that are ``unfit`` are not centred.

    Raises UnfitWeightError when a weight turns out to be, AffineCheckError when a check failed and
    gammas, betas or scales were moved: a moved one may leave the range of its type, or meet an
    infinite weight, where centring would not.
    """
    with clock.stage("analyse"):
        prepared = prepare(source.model)
        analysis = _analysed(prepared, chosen, unfit)
    report: dict[str, Any] = {"inspect": inspection(analysis), "prepared": _prepared(prepared)}
    if chosen.dry_run:
        report["timing_s"] = clock.seconds
        return Result(None, not analysis.plan.empty, analysis.plan, report)
    try:
        return _carry_out(source, output, analysis, chosen, clock, report)
    except UnfitWeightError:
        raise
    except VerificationError as error:
        if analysis.plan.fusions or analysis.plan.scales:
            raise AffineCheckError(str(error)) from error
        raise


def _analysed(prepared: Prepared, chosen: Options, unfit: frozenset[str]) -> Analysis:
    return analyse(
        prepared.model,
        chosen.target,
        allow_split_bytes=chosen.allow_split,
        exclude=chosen.exclude,
        fuse_affine=chosen.fuse_affine,
        range_limit=chosen.range_limit,
        unfit=unfit,
        for_proof=chosen.check > 0,
    )


def _bytes(gigabytes: float | None) -> int | None:
    """Return GB in bytes; raises UsageError where they are not positive."""
    if gigabytes is None:
        return None
    if not gigabytes > 0:
        raise UsageError(f"the memory of the check must be positive, not {gigabytes:g} GB")
    return max(1, int(gigabytes * 1e9))


def _target(name: Target | str) -> Target:
    try:
        return Target(name)
    except ValueError as error:
        names = ", ".join(target.value for target in Target)
        raise UsageError(f"there is no target '{name}'; the targets are {names}") from error


def _prepared(prepared: Prepared) -> dict[str, list[str]]:
    return {"inlined": list(prepared.inlined), "split": list(prepared.split)}


def _carry_out(
    source: Source,
    output: str | os.PathLike[str] | None,
    analysis: Analysis,
    options: Options,
    clock: Clock,
    report: dict[str, Any],
) -> Result:
    folded = fold(source, analysis, options, clock)
    result, changed, proof = folded.model, folded.changed, folded.proof
    if options.fail_if_unchanged and not changed:
        raise UnchangedError("nothing to improve in this model, and --fail-if-unchanged is set")
    if proof is not None:
        report["proof"] = proof.to_json()
        if not proof.passed:
            raise VerificationError(f"the proof failed, nothing was written: {proof.failures[0]}")
    verification: Verification | None = None
    if output is None:
        if changed and options.check:
            verification = _verified(source, ModelSource(result, None), options, clock)
        returned: Any = source.give_back(result)
    else:
        checked = changed and options.check > 0
        written = _write(source, result, Path(output), options, clock, checked)
        verification = written.verification
        returned, report["output"] = written.path, written.document
    if verification is not None:
        report["verification"] = verification.to_json()
    report["timing_s"] = clock.seconds
    return Result(returned, changed, analysis.plan, report, proof, verification)


@dataclass(frozen=True, slots=True)
class _Written:
    path: Path
    document: dict[str, Any]
    verification: Verification | None


def _write(
    source: Source,
    result: ir.Model,
    output: Path,
    options: Options,
    clock: Clock,
    checked: bool,
) -> _Written:
    """Stage the result, verify the staged files, publish them."""
    verification = None
    with clock.stage("save"):
        staged = model_io.stage(
            result,
            output,
            source=source.path,
            force=options.force,
            external_data=options.save_as_external_data,
            share=options.share_weights,
            progress=clock.part("save"),
        )
    with staged:
        if checked:
            rewritten = ModelSource(model_io.load(staged.path), staged.path)
            verification = _verified(source, rewritten, options, clock)
        # The check ran the original from its file too.
        model_io.check_unchanged(source.model)
        files = staged.commit()
    document = {
        "path": str(files.model),
        "data": str(files.data) if files.data is not None else None,
        "data_files": [str(shard) for shard in files.shards],
        "shared_data": [str(file) for file in files.shared],
        "bytes": files.nbytes,
        "functions": sorted(name for _, name, _ in result.functions),
        "target": options.target.value,
    }
    return _Written(files.model, document, verification)


def _verified(
    source: Source, rewritten: ModelSource, options: Options, clock: Clock
) -> Verification:
    with clock.stage("verify"):
        from onnxfold.inputs import InputSpec
        from onnxfold.verification.compare import verify as compare

        verification = compare(
            ModelSource(source.model, source.path),
            rewritten,
            samples=options.check,
            seed=options.seed,
            spec=InputSpec.parse(options.inputs) if options.inputs else None,
            limit=options.noise_limit,
            rtol=options.rtol,
            atol=options.atol,
            providers=options.providers or None,
            memory_bytes=_bytes(options.memory),
            progress=clock.part("verify"),
        )
    if not verification.passed:
        raise VerificationError(f"verification failed, nothing was written: {verification.worst}")
    return verification
