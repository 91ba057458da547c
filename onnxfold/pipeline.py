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

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check import ModelSource, Verification
from onnxfold.errors import (
    AffineCheckError,
    UnchangedError,
    UsageError,
    VerificationError,
    WeightOverflowError,
)
from onnxfold.graph import ModelInfo
from onnxfold.graph.traversal import all_graphs
from onnxfold.model_io.sources import Source
from onnxfold.operators.functions import DOMAIN, SIGNATURES
from onnxfold.options import Options, Target
from onnxfold.passes.analysis import Analysis, analyse
from onnxfold.passes.centring.apply import Applied, apply_fusions, apply_plan, overflowing_weights
from onnxfold.passes.lower.finalize import finished, inline_functions
from onnxfold.passes.lower.residual import residual_fusions
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import Prepared, prepare
from onnxfold.passes.stage_timer import StageTimer
from onnxfold.report.document import inspection

if TYPE_CHECKING:
    from onnxfold.proof import Proof

__all__ = ["Folded", "Result", "bytes_of", "fold", "run"]


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


def run(
    source: Source, output: str | os.PathLike[str] | None, chosen: Options, timer: StageTimer
) -> Result:
    """Run every stage behind loading; again without the weights, or the moves, that cannot be."""
    overflowing: frozenset[str] = frozenset()
    left_out: str | None = None
    while True:
        try:
            result = _attempt(source, output, chosen, timer, overflowing)
        except (AffineCheckError, WeightOverflowError) as error:
            found = frozenset[str]()
            if isinstance(error, WeightOverflowError):
                again = _analysed(prepare(source.model), chosen, overflowing)
                found = overflowing_weights(again.view, again.plan)
            if not found and not chosen.fuse_affine:
                raise
            if not found:
                chosen, left_out = replace(chosen, fuse_affine=False), str(error)
            overflowing |= found
        else:
            if left_out is not None:
                result.report["affine_left_out"] = left_out
            return result


def _attempt(
    source: Source,
    output: str | os.PathLike[str] | None,
    chosen: Options,
    timer: StageTimer,
    overflowing: frozenset[str],
) -> Result:
    """Run every stage behind loading; weights that are ``overflowing`` are not centred.

    Raises WeightOverflowError when a weight turns out to be, AffineCheckError when a check failed
    and gammas, betas or scales were moved: a moved one may leave the range of its type, or meet an
    infinite weight, where centring would not.
    """
    with timer.stage("analyse"):
        prepared = prepare(source.model)
        analysis = _analysed(prepared, chosen, overflowing)
    report: dict[str, Any] = {"inspect": inspection(analysis), "prepared": _prepared(prepared)}
    if chosen.dry_run:
        report["timing_s"] = timer.seconds
        return Result(None, not analysis.plan.empty, analysis.plan, report)
    try:
        return _carry_out(source, output, analysis, chosen, timer, report)
    except WeightOverflowError:
        raise
    except VerificationError as error:
        if analysis.plan.fusions or analysis.plan.scales:
            raise AffineCheckError(str(error)) from error
        raise


def _analysed(prepared: Prepared, chosen: Options, overflowing: frozenset[str]) -> Analysis:
    return analyse(
        prepared.model,
        chosen.target,
        allow_split_bytes=chosen.allow_split,
        exclude=chosen.exclude,
        fuse_affine=chosen.fuse_affine,
        range_limit=chosen.range_limit,
        overflowing=overflowing,
        for_proof=chosen.check > 0,
    )


def _prepared(prepared: Prepared) -> dict[str, list[str]]:
    return {"inlined": list(prepared.inlined), "split": list(prepared.split)}


def _carry_out(
    source: Source,
    output: str | os.PathLike[str] | None,
    analysis: Analysis,
    options: Options,
    timer: StageTimer,
    report: dict[str, Any],
) -> Result:
    folded = fold(source, analysis, options, timer)
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
            verification = _verified(source, ModelSource(result, None), options, timer)
        returned: Any = source.give_back(result)
    else:
        checked = changed and options.check > 0
        written = _write(source, result, Path(output), options, timer, checked)
        verification = written.verification
        returned, report["output"] = written.path, written.document
    if verification is not None:
        report["verification"] = verification.to_json()
    report["timing_s"] = timer.seconds
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
    timer: StageTimer,
    checked: bool,
) -> _Written:
    """Stage the result, verify the staged files, publish them."""
    verification = None
    with timer.stage("save"):
        staged = model_io.stage(
            result,
            output,
            source=source.path,
            force=options.force,
            external_data=options.save_as_external_data,
            share=options.share_weights,
            progress=timer.part("save"),
        )
    with staged:
        if checked:
            rewritten = ModelSource(model_io.load(staged.path), staged.path)
            verification = _verified(source, rewritten, options, timer)
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
    source: Source, rewritten: ModelSource, options: Options, timer: StageTimer
) -> Verification:
    with timer.stage("verify"):
        from onnxfold.check.compare import verify as compare
        from onnxfold.inputs import InputSpec

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
            memory_bytes=bytes_of(options.memory),
            progress=timer.part("verify"),
        )
    if not verification.passed:
        raise VerificationError(f"verification failed, nothing was written: {verification.worst}")
    return verification


def bytes_of(gigabytes: float | None) -> int | None:
    """Return GB in bytes; raises UsageError where they are not positive."""
    if gigabytes is None:
        return None
    if not gigabytes > 0:
        raise UsageError(f"the memory of the check must be positive, not {gigabytes:g} GB")
    return max(1, int(gigabytes * 1e9))


@dataclass(frozen=True, slots=True)
class Folded:
    """The model after the plan, the given one where nothing changed; a proof where one was asked.

    A proof that failed is for the caller to act on.
    """

    model: ir.Model
    changed: bool
    proof: Proof | None


def fold(source: Source, analysis: Analysis, options: Options, timer: StageTimer) -> Folded:
    """Carry out the plan of an analysis, which uses up its working copy of the model."""
    with timer.stage("rewrite"):
        moved = _copy_of_moved(analysis) if options.check else None
        rewritten = _rewritten(source, analysis, options)
    if not rewritten.changed:
        return Folded(source.model, changed=False, proof=None)
    result = finished(rewritten.model, source.model, analysis.plan, options.target)
    proof: Proof | None = None
    if options.check:
        with timer.stage("prove"):
            proof = _proved(source, analysis, moved, result)
    inline_functions(result, everything=options.target is not Target.PORTABLE)
    return Folded(result, changed=True, proof=proof)


def _copy_of_moved(analysis: Analysis) -> ir.Model | None:
    """Return a copy of the model after affine fusion, before centring; tensors are shared."""
    plan = analysis.plan
    return analysis.view.model.clone() if plan.fusions or plan.scales else None


def _proved(source: Source, analysis: Analysis, moved: ir.Model | None, result: ir.Model) -> Proof:
    """Prove the steps: gammas and betas, then scales, then the centring."""
    from onnxfold.proof import prove, prove_affine, prove_scales
    from onnxfold.proof.reshapes import pull_reshapes

    before, after = (ModelInfo(prepare(model).model) for model in (source.model, result))
    after = pull_reshapes(after, before)
    plan, steps = analysis.plan, []
    last = None if moved is None else ModelInfo(moved)
    if last is not None and plan.fusions:
        between = last if analysis.between is None else ModelInfo(analysis.between)
        steps.append(prove_affine(before, between, plan.fusions))
        before = between
    if last is not None and plan.scales:
        steps.append(prove_scales(before, last, plan.scales))
        before = last
    proof = prove(before, after, plan)
    for step in steps:
        proof = proof.joined(step.scaled_weights, step.shifted_biases, step.failures)
    return proof


def _rewritten(source: Source, analysis: Analysis, options: Options) -> Applied:
    """Carry out the plan, then fuse residual additions; a model of ours comes back unchanged."""
    applied = apply_plan(analysis.view, analysis.plan, analysis.sites, analysis.lowering)
    if options.target is not Target.PORTABLE or not options.fuse_residual:
        return applied
    lowered = ModelInfo(applied.model)
    fusions = residual_fusions(lowered)
    apply_fusions(lowered, fusions)
    fused_before = sum(
        node.domain == DOMAIN and node.op_type in SIGNATURES and SIGNATURES[node.op_type].residual
        for graph in all_graphs(source.model)
        for node in graph
    )
    return Applied(applied.model, applied.changed or len(fusions) != fused_before)
