"""From a loaded model to a checked one: the attempts, the check, the written file, the report.

    load -> prepare -> the passes, each proved -> stage -> verify -> publish

The input is never changed. Nothing is published before the proofs and the verification have passed.
The proof and the check are imported on use, so that a run without them starts quickly.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check import Verification
from onnxfold.errors import (
    ModelError,
    PassCheckError,
    UnchangedError,
    VerificationError,
    WeightOverflowError,
)
from onnxfold.graph import ModelInfo
from onnxfold.model_io.load import Source, open_source
from onnxfold.options import Folding, FuseAffine, Options
from onnxfold.passes.base import BARE_MEANS, DEFERRED_MEANS, Settings, exclusion
from onnxfold.passes.centring.apply import overflowing_weights
from onnxfold.passes.findings import Findings
from onnxfold.passes.lower.opset import strip_notes
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.stored_constants import weights_in_parts
from onnxfold.passes.prepare.working_copy import Prepared, prepare
from onnxfold.passes.split_skip_norms import residual_calls
from onnxfold.pipeline import folding
from onnxfold.pipeline.decided import Decided
from onnxfold.pipeline.finalize import prepared_for
from onnxfold.pipeline.publishing import advice, check, count, notes, write
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.pipeline.step import LeftOut
from onnxfold.proof.states import as_given
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.report.before_after import Figures, figures
from onnxfold.report.document import inspection, stored_twice
from onnxfold.shapes.claims import Claim, check_claims

if TYPE_CHECKING:
    from onnxfold.proof import Proof


@dataclass(frozen=True, slots=True)
class Result:
    """The result of optimize.

    ``model`` is of the kind that was passed: None after a dry run. Pickling and copying convert an
    onnx_ir.Model to an onnx.ModelProto, and raise ModelError if it exceeds a protobuf.
    """

    model: Any
    changed: bool
    plan: Plan
    report: dict[str, Any]
    proof: Proof | None = None
    verification: Verification | None = None

    def __repr__(self) -> str:
        """Return in one line what was done; the model and the report are too long to print."""
        from onnxfold.report.sentences import NOTHING, totals

        inspect = self.report.get("inspect", {})
        done = totals(inspect["summary"]) if inspect.get("norms") else NOTHING
        return f"<onnxfold.Result: {done}>"

    def __reduce__(self) -> tuple[Any, ...]:
        rest = tuple(getattr(self, field.name) for field in fields(self)[1:])
        if isinstance(self.model, ir.Model):  # nodes that refer to each other, and mapped files
            return _of_proto, (model_io.materialise(self.model), *rest)
        return Result, (self.model, *rest)


def _of_proto(model: onnx.ModelProto, *rest: Any) -> Result:
    return Result(model_io.from_proto(model), *rest)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What an attempt leaves out: weights that overflow, passes that failed.

    ``needless``: passes that only prepare others, which found nothing to do. ``shared``: names of
    weights to store in parts from the start, because a pass moved away what reads all of one.
    ``claims``: shapes that only the model declares.
    """

    overflowing: frozenset[str] = frozenset()
    left_out: tuple[LeftOut, ...] = ()
    needless: frozenset[str] = frozenset()
    shared: frozenset[str | None] = frozenset()
    claims: tuple[Claim, ...] = ()


def run(
    source: Source, output: str | os.PathLike[str] | None, chosen: Options, timer: StageTimer
) -> Result:
    """Run every stage after loading; again without the weights or passes that fail."""
    chosen = _for_basis(chosen)
    attempt = _Attempt()
    while True:
        try:
            return _attempt(source, output, chosen, timer, attempt)
        except WeightOverflowError as error:
            attempt = _without_weights(attempt, source, chosen, error)
        except PassCheckError as error:
            left_out = (*attempt.left_out, LeftOut(error.name, str(error)))
            attempt = replace(attempt, left_out=left_out)


def _for_basis(chosen: Options) -> Options:
    """Set the defaults that another basis needs, unless the user set them.

    All folds, and all gammas and betas that move, where streams are to be rotated; none if gammas
    are to be split.
    """
    auto = chosen.fuse_affine is FuseAffine.AUTO
    if chosen.split_gamma != "off" and auto:
        chosen = replace(chosen, fuse_affine=FuseAffine.NEVER)
    if chosen.rotate == "off":
        return chosen
    affine = FuseAffine.ALWAYS if auto else chosen.fuse_affine
    return replace(chosen, fold=Folding.ALWAYS, fuse_affine=affine)


def _without_weights(
    attempt: _Attempt, source: Source, chosen: Options, error: WeightOverflowError
) -> _Attempt:
    """Exclude weights without finite centered values, otherwise the moves of factors."""
    try:
        decided = _decided(source, chosen, attempt)
        found = overflowing_weights(decided.info, decided.plan)
    except WeightOverflowError:  # a later pass reads the weight that an earlier one changed
        found = frozenset()
    if found:
        return replace(attempt, overflowing=attempt.overflowing | found)
    missing = _without(chosen, attempt)
    moves = [LeftOut(name, str(error)) for name in sorted(folding.AFFINE_PASSES - missing)]
    if not moves:
        raise error
    return replace(attempt, left_out=(*attempt.left_out, *moves))


def _without(chosen: Options, attempt: _Attempt) -> frozenset[str]:
    """Return the names of the passes that this attempt leaves out."""
    return folding.unwanted(chosen) | attempt.needless | {left.name for left in attempt.left_out}


def _again(
    attempt: _Attempt, findings: Findings, info: ModelInfo | None, *, changed: bool
) -> _Attempt | None:
    """Return an attempt that makes more of the model, or less of what helps nothing, or None.

    Scales are excluded if no stream is compressed, as a conversion moves factors only for this.
    Weights are stored in parts if nothing reads all of them after the passes.
    """
    moved = findings.plan.scales or findings.plan.fusions or findings.plan.batch_norms
    needless = findings.compressed is not None and not findings.compressed and moved
    if needless and attempt.needless != folding.AFFINE_PASSES:
        return replace(attempt, needless=folding.AFFINE_PASSES)
    shared = attempt.shared | (weights_in_parts(info) if changed and info else frozenset())
    return None if shared == attempt.shared else replace(attempt, shared=shared)


def _settings(source: Source, chosen: Options, attempt: _Attempt) -> Settings:
    data = None
    if chosen.data is not None:
        from onnxfold.inputs.data import read_samples

        data = read_samples(Path(chosen.data), source.model, source.path)
    settings = Settings(
        **asdict(chosen),
        overflowing=attempt.overflowing,
        shared=attempt.shared,
        fused_before=residual_calls(source.model),
        failed=frozenset(left.name for left in attempt.left_out),
        feeds=() if data is None else data.feeds,
        data_label="" if data is None else data.label,
    )
    exclusion(settings.exclude)  # an invalid pattern fails before any norm is looked at
    return settings


def _decided(source: Source, chosen: Options, attempt: _Attempt) -> Decided:
    settings = _settings(source, chosen, attempt)
    prepared = prepared_for(check_claims(source.model).model, settings, copy=False)
    return folding.decide_all(prepared, settings, without=_without(chosen, attempt))


def _attempt(
    source: Source,
    output: str | os.PathLike[str] | None,
    chosen: Options,
    timer: StageTimer,
    attempt: _Attempt,
) -> Result:
    """Run every stage after loading once.

    Raises WeightOverflowError if a weight overflows, PassCheckError if the check failed and gammas,
    betas or scales were moved: a moved one may leave the range of its type, or meet an infinite
    weight, which centering alone would not. A deferred LayerNorm keeps a mean, which may cost more
    rounding than the check allows.
    """
    if chosen.dry_run:
        return _planned(source, chosen, timer, attempt)
    settings = _settings(source, chosen, attempt)
    with timer.stage("analyse"):
        known = check_claims(source.model)
        attempt = replace(attempt, claims=known.claims)
        whole = as_given(known.model, inferred=True) if chosen.check == 0 else None
        prepared = prepared_for(known.model, settings, copy=False)
    with timer.stage("count"):
        plain = prepared
        if not prepared.plain:
            plain = prepare(check_claims(source.model).model, inferred=True, copy=False)
        before = figures(source.model, plain.info)
    folded = folding.fold(
        prepared,
        source.model,
        settings,
        timer,
        without=_without(chosen, attempt),
        prove=chosen.check is not None,
        whole=whole,
    )
    _demand(folded.findings)
    again = _again(attempt, folded.findings, folded.info, changed=folded.changed)
    if again is not None:
        return _attempt(source, output, chosen, timer, again)
    try:
        return _published(source, output, prepared, folded, chosen, timer, attempt, before)
    except WeightOverflowError:
        raise
    except VerificationError as error:
        plan = folded.findings.plan
        with_mean = [norm for norm in plan.deferred if norm.centred]
        moves = (
            (DEFERRED_MEANS, with_mean),
            ("deferral", plan.deferred),
            (BARE_MEANS, plan.centrings),
            ("tables", [fusion for fusion in plan.fusions if fusion.tables]),
            ("scales", plan.scales),
            ("batch norms", plan.batch_norms),
            ("affine", [fusion for fusion in plan.fusions if not fusion.tables]),
            ("reinstating", [n for n in folded.findings.deferred_before if n.reinstated]),
        )
        for name, moved in moves:
            if moved:
                raise PassCheckError(str(error), name) from error
        raise


def _demand(findings: Findings) -> None:
    """Raise ModelError where streams were to be scaled or rotated and none could be."""
    rotated = findings.rotated_streams
    if rotated is not None and rotated.refusals and rotated.empty:
        norm, why = rotated.refusals[0]
        kept = _kept_affine(findings, why)
        raise ModelError(f"the stream before '{norm}' cannot be rotated: {why.sentence}{kept}")
    scaled = findings.scaled_streams
    if scaled is not None and scaled.refusals and scaled.empty and not scaled.in_range:
        norm, why = scaled.refusals[0]
        raise ModelError(f"the stream before '{norm}' cannot be scaled: {why.sentence}")


def _kept_affine(findings: Findings, why: Refusal) -> str:
    """Return why the norms that a refusal blames for their gamma or beta keep it, or nothing."""
    if why.code is not RefusalCode.AFFINE_NORM_OUTPUT:
        return ""
    rows = findings.description.norms
    named = (row["output"] for row in rows if row["name"] in why.nodes)
    found = (findings.affine_refusals.get(output) for output in named)
    return "".join(f": {each.sentence}" for each in found if each is not None)


def _planned(source: Source, chosen: Options, timer: StageTimer, attempt: _Attempt) -> Result:
    """Decide, and report it."""
    with timer.stage("analyse"):
        settings = _settings(source, chosen, attempt)
        known = check_claims(source.model)
        prepared = prepared_for(known.model, settings, copy=False)
        decided = folding.decide_all(prepared, settings, without=_without(chosen, attempt))
    again = _again(attempt, decided.findings, decided.info, changed=decided.differs)
    if again is not None:
        return _planned(source, chosen, timer, again)
    report = _decisions(source, prepared, decided.findings, chosen, known.claims)
    report["timing_s"] = timer.seconds
    return Result(None, decided.differs, decided.plan, report)


def _decisions(
    source: Source,
    prepared: Prepared,
    findings: Findings,
    chosen: Options,
    claims: Sequence[Claim],
) -> dict[str, Any]:
    """Return the report's part on what was decided; on bases of streams where that was asked."""
    excluded = exclusion(chosen.exclude)
    twice = stored_twice(source.model)
    names = ("split_gammas", "rotated_streams", "rotated_heads", "scaled_streams")
    bases = ((name, getattr(findings, name)) for name in names)
    return {
        "inspect": inspection(findings, claims, excluded, prepared.unsplit, twice),
        "prepared": {"inlined": list(prepared.inlined), "split": list(prepared.split)},
        **{name: each.to_json() for name, each in bases if each is not None},
    }


def _published(
    source: Source,
    output: str | os.PathLike[str] | None,
    prepared: Prepared,
    folded: folding.Folded,
    options: Options,
    timer: StageTimer,
    attempt: _Attempt,
    before: Figures,
) -> Result:
    """Check the result of the passes, and return or write it."""
    if options.strip_metadata:
        stripped = strip_notes(folded.model)
        changed = folded.changed or stripped is not folded.model
        folded = replace(folded, model=stripped, changed=changed)
    report = _decisions(source, prepared, folded.findings, options, attempt.claims)
    result, report["changed"] = folded.model, folded.changed
    left_out = (*attempt.left_out, *folded.left_out)
    if left_out:
        report["left_out"] = [left.to_json() for left in left_out]
    if folded.proof is not None:
        report["proof"] = folded.proof.to_json()
    changed = folded.changed
    if options.fail_if_unchanged and not changed:
        what = "improve" if options.convert_to is None else "convert"
        raise UnchangedError(f"nothing to {what} in this model, and --fail-if-unchanged is set")
    verification: Verification | None = None
    returned: Any
    if output is None:
        returned = source.give_back(result)
        if changed and options.check:
            # The returned model is checked, not its source.
            again = open_source(returned)
            verification = check(source, again, folded.findings, options, timer)
        both = count(source, folded, before, timer)
    else:
        report["output"], verification, both = write(
            source, folded, before, Path(output), options, timer, changed and bool(options.check)
        )
        returned = Path(report["output"]["path"])
        report["output"]["advice"] = advice(options, report["inspect"]["excluded_fusions"])
        report["output"]["notes"] = notes(options, report["inspect"])
    if verification is not None:
        report["verification"] = verification.to_json()
    if both is not None:
        report["before_after"] = both
    samples = 0 if verification is None else options.check or 0
    report["assurance"] = {"proved": folded.proof is not None, "samples": samples}
    report["timing_s"] = timer.seconds
    return Result(returned, changed, folded.findings.plan, report, folded.proof, verification)
