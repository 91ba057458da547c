"""The passes in order: each decides on a version of the model, creates the next, and is proved.

    prepare -> reinstating -> scales -> batch norms -> affine [-> tables] -> centring
            [-> split gammas]
            [-> rotated streams -> rotated heads] [-> scaled streams] -> deferral -> lower
    prepare -> readers back -> decompression -> centring                     convert --to rms
    prepare -> scales [-> affine] -> centring -> compression [-> readers]    convert --to crms
    prepare -> readers back -> decompression -> restoring [-> shifting]      convert --to layer

Scales come before gammas and betas, because a factor after a norm becomes part of them.

The version to prove against is kept, because the pass edits a copy; without a proof it is edited in
place. Unproved parts of a pass are left out: the next one continues from the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label
from onnxfold.graph.edit import Editor
from onnxfold.options import Conversion, Defer, FuseAffine, Options
from onnxfold.passes import dropping
from onnxfold.passes.affine import batch_norms, into_tables
from onnxfold.passes.affine.apply import apply as apply_affine
from onnxfold.passes.affine.decide import decide as decide_affine
from onnxfold.passes.affine.plan import AffinePlan
from onnxfold.passes.base import Pass, Settings
from onnxfold.passes.centring.apply import apply as apply_centring
from onnxfold.passes.centring.decide import CentringDecision, folds_without_betas
from onnxfold.passes.centring.decide import decide as decide_centring
from onnxfold.passes.deferral import undefer
from onnxfold.passes.deferral.apply import apply as apply_deferral
from onnxfold.passes.deferral.decide import decide as decide_deferral
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.passes.findings import Findings, Sums, describe, paper_counts
from onnxfold.passes.lower import decide as lowering
from onnxfold.passes.lower.join_skip_norms import join_skip_norms
from onnxfold.passes.lower.opset import name_sources
from onnxfold.passes.prepare.working_copy import Prepared, prepare
from onnxfold.passes.scales import decide as scales
from onnxfold.passes.scales.plan import ScalesPlan
from onnxfold.passes.scales.writer import TOO_FAR
from onnxfold.passes.stream_forms import compress, decompress, restore, shift, shrink_consumers
from onnxfold.pipeline import finalize, proofs
from onnxfold.pipeline.basis_passes import BASIS_PASSES, unasked
from onnxfold.pipeline.decided import Decided, outputs
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.pipeline.step import LeftOut, failure_of, proved, step
from onnxfold.proof.states import as_given
from onnxfold.recognition import find_norms
from onnxfold.refusal import RefusalCode
from onnxfold.shapes import infer
from onnxfold.shapes.claims import name_sizes, size_names
from onnxfold.targets.sums import joined_into, replace_by_sums, saved_apart, slow_additions

if TYPE_CHECKING:
    from onnxfold.proof import Proof


def _fused(plan: AffinePlan | ScalesPlan) -> tuple[str, ...]:
    return outputs(plan.fusions)


_SCALES: Pass[ScalesPlan] = Pass("scales", scales.decide, scales.apply, proofs.of_scales, _fused)
_AFFINE: Pass[AffinePlan] = Pass(
    "affine",
    partial(decide_affine, folding=folds_without_betas),
    apply_affine,
    proofs.of_affine,
    _fused,
)
_CENTRING: Pass[CentringDecision] = Pass(
    "centring",
    decide_centring,
    apply_centring,
    proofs.of_centring,
    lambda d: outputs(d.plan.folds + d.plan.centrings),
)
_READERS = Pass("readers", shrink_consumers.decide, shrink_consumers.apply, proofs.of_readers)
_READERS_BACK = Pass(
    "readers back", shrink_consumers.decide_back, shrink_consumers.apply, proofs.of_readers
)
_BATCH_NORMS: Pass[AffinePlan] = Pass(
    "batch norms",
    batch_norms.decide,
    batch_norms.apply,
    proofs.of_affine,
    _fused,
)
_DEFERRAL: Pass[DeferralPlan] = Pass(
    "deferral",
    decide_deferral,
    apply_deferral,
    proofs.of_deferral,
    lambda plan: outputs(plan.norms),
)
PASSES: tuple[Pass[Any], ...] = (
    Pass("reinstating", undefer.decide, undefer.apply, proofs.of_reinstating),
    _SCALES,
    _BATCH_NORMS,
    _AFFINE,
    Pass("tables", into_tables.decide, into_tables.apply, proofs.of_tables, _fused),
    _CENTRING,
    *BASIS_PASSES,
    _DEFERRAL,
)
# After all exact passes; never with a proof.
_DROPPING = Pass("dropping", dropping.decide, dropping.apply, dropping.prove)
_DECOMPRESSION = Pass(
    "decompression",
    decompress.decide,
    decompress.apply,
    proofs.of_norms("decompressed_norms"),
)
_COMPRESSION = Pass(
    "compression", compress.decide, compress.apply, proofs.of_norms("compressed_norms")
)
_CONVERSIONS: Mapping[Conversion, tuple[Pass[Any], ...]] = {
    Conversion.RMS: (_READERS_BACK, _DECOMPRESSION, _CENTRING),
    Conversion.CRMS: (_SCALES, _CENTRING, _COMPRESSION),
    Conversion.LAYER: (
        _READERS_BACK,
        _DECOMPRESSION,
        Pass("restoring", restore.decide, restore.apply, proofs.of_norms("folded_norms")),
        Pass("shifting", shift.decide, shift.apply, proofs.of_shifting),
    ),
}
_FEWER_CHANNELS = (_SCALES, _AFFINE, _CENTRING, _COMPRESSION, _READERS)  # that readers receive
# Spells the result of all passes for a target; always last, and proved on what is written.
LOWER = Pass("lower", lowering.decide, lowering.apply, proofs.of_lowering)
AFFINE_PASSES = frozenset({"affine", "batch norms", "scales", "tables"})


@dataclass(frozen=True, slots=True)
class Folded:
    """The model after the passes (the given one if nothing changed), and a proof if requested.

    ``left_out`` is what could not be proved; the proof covers the
    rest. ``info``: of a prepared copy of the model, unless the last proof failed.
    """

    model: ir.Model
    changed: bool
    findings: Findings
    proof: Proof | None = None
    left_out: tuple[LeftOut, ...] = ()
    info: ModelInfo | None = None


def decide_all(prepared: Prepared, settings: Settings, *, without: Collection[str] = ()) -> Decided:
    """Decide on every pass except those ``without``; consumes the working copy.

    Each is applied, because later ones decide on its result.
    """
    state = _start(prepared)
    for each in _passes(state, settings, without):
        _count_by_paper(state, each, settings)
        decision = each.decide(state.info, settings)
        state.note(each.name, decision, None)
        if not decision.empty:
            each.apply(Editor(state.info), decision, settings)
            state.info = ModelInfo(state.info.model)
    return state


def fold(
    prepared: Prepared,
    original: ir.Model,
    settings: Settings,
    timer: StageTimer,
    *,
    without: Collection[str] = (),
    prove: bool = True,
    whole: ModelInfo | None = None,
) -> Folded:
    """Apply every pass except those ``without``; consumes the working copy of the original.

    ``whole``: the original with its types (``as_given``), for a proof of all that the check of the
    files would otherwise find: that begins at it, not at its working copy, and ends at what is
    written, as it is written.
    """
    state, names = _start(prepared), size_names(prepared.info)
    for each in _passes(state, settings, without):
        _count_by_paper(state, each, settings)
        _step(state, each, settings, timer, prove=prove)
    findings = state.findings  # of the version before spelling, in place if nothing is proved
    result = _spelled(state, original, settings, timer, prove=prove)
    if whole is not None and result is not original:
        with timer.stage("prove"):
            finalize.define_functions(state.info, settings.target, settings.norm_form)
            why = proofs.unlike(whole, prepared.info)
            name = "prepare" if why else LOWER.name
            why = why or proofs.unlike(as_given(result), state.info, written=True)
        if why:
            state.leave_all(LeftOut(name, f"the proof failed: {why}"))
            findings, result = state.findings, original
    if state.final is not None:
        name_sizes(state.final, names)
    findings = replace(findings, sums=state.sums)
    proof = proofs.as_one(state.shown) if prove and state.changed else None
    return Folded(result, state.changed, findings, proof, tuple(state.left_out), state.final)


def unwanted(chosen: Options) -> frozenset[str]:
    """Return the names of the passes that the options exclude."""
    names = AFFINE_PASSES if chosen.fuse_affine is FuseAffine.NEVER else frozenset[str]()
    names |= frozenset[str]() if chosen.fuse_affine is FuseAffine.ALWAYS else {"tables"}
    names |= unasked(chosen)
    return names | {_DEFERRAL.name} if chosen.defer is Defer.OFF else names


def _passes(state: Decided, settings: Settings, without: Collection[str]) -> Iterator[Pass[Any]]:
    """Yield the passes of a run, then those that later ones gave more to do."""
    if settings.dropped:
        chosen: tuple[Pass[Any], ...] = (_DROPPING,)
    elif settings.convert_to is None:
        chosen = PASSES
    else:
        few = settings.change_readers
        chosen = _FEWER_CHANNELS if few else _CONVERSIONS[settings.convert_to]
    by_name = {each.name: each for each in chosen if each.name not in without}
    for each in by_name.values():
        yield each
        gammas = chosen is PASSES and each is _CENTRING and _AFFINE.name in by_name
        if gammas and _keeps_in_vain(state):
            state.info = infer(state.info.model)
            yield _AFFINE
    if chosen is PASSES:
        yield from (by_name[name] for name in _again(state) if name in by_name)


def _again(state: Decided) -> Iterator[str]:
    """Yield the names of the passes that a second run would give something to do.

    A BatchNormalization before one that has moved is then before its layer, and so is a constant
    that was too far from it before others between them had moved. New biases take
    constants that are added to parts of a layer. Deferred norms leave gammas and scales where
    layers reach them, and leave a norm before them that had to wait, as a value is computed without
    one scale at a time. What needed a value as it was may be gone, such as the two means of a norm
    that has folded. Moves that were not proved together may be one by one.
    """
    yield from _while_it_finds(state, _BATCH_NORMS)
    scales: ScalesPlan = state.decisions.get(_SCALES.name, ScalesPlan())
    if any(why is TOO_FAR for _, why in scales.refusals):
        yield from _while_it_finds(state, _SCALES)
    affine: AffinePlan = state.decisions.get(_AFFINE.name, AffinePlan())
    deferred = _moved(state, _DEFERRAL) > 0
    biased = any(place.behind for fusion in affine.fusions for place in fusion.places)
    given = {
        _SCALES.name: biased or deferred,
        _AFFINE.name: deferred,
        _CENTRING.name: _obstacle_went(state),
    }
    unproved = {left.name for left in state.left_out if left.moves}
    names = [name for name, due in given.items() if due or name in unproved]
    if names:
        state.info = infer(state.info.model)  # what passes have inserted has no shapes
    yield from names
    yield from _while_it_finds(state, _DEFERRAL)


def _while_it_finds(state: Decided, chosen: Pass[Any]) -> Iterator[str]:
    """Yield the name of a pass that has found something, until it finds no more."""
    known = 0
    while (moved := _moved(state, chosen)) != known:
        known = moved
        state.info = infer(state.info.model)  # what passes have inserted has no shapes
        yield chosen.name


def _moved(state: Decided, chosen: Pass[Any]) -> int:
    decision = state.decisions.get(chosen.name)
    return 0 if decision is None else len(chosen.moves(decision))


def _keeps_in_vain(state: Decided) -> bool:
    """Whether a norm has folded that kept its gamma because it would stay in several operators."""
    affine: AffinePlan = state.decisions.get(_AFFINE.name, AffinePlan())
    centring: CentringDecision = state.decisions.get(_CENTRING.name, CentringDecision())
    folded = set(outputs(centring.plan.folds))
    return any(
        ref in folded and why.code is RefusalCode.NO_CHEAPER_FORM for ref, why in affine.refusals
    )


def _obstacle_went(state: Decided) -> bool:
    """Whether all nodes that kept some norm from folding have been replaced.

    A centering that was inserted for one norm centers what others read over more axes.
    """
    decision: CentringDecision = state.decisions.get(_CENTRING.name, CentringDecision())
    if decision.plan.insertions and decision.refusals:
        return True
    blamed = [set(why.nodes) for _, why in decision.refusals if why.nodes]
    labels = {node_label(node) for node in state.info.nodes()} if blamed else set[str]()
    return any(nodes.isdisjoint(labels) for nodes in blamed)


def _start(prepared: Prepared) -> Decided:
    return Decided(prepared.info, describe(prepared.info, find_norms(prepared.info)))


def _count_by_paper(state: Decided, chosen: Pass[Any], settings: Settings) -> None:
    """Count by the paper's rules what centering decides on: factors after layers are in them."""
    if settings.paper and chosen is _CENTRING and state.paper is None:
        state.paper = paper_counts(state.info)


def _step(
    state: Decided, chosen: Pass[Any], settings: Settings, timer: StageTimer, *, prove: bool
) -> None:
    """Let a pass create the next version, as far as it is proved."""
    made = step(chosen, state.info, settings, timer, prove=prove)
    state.note(chosen.name, made.decision, made.left_out)
    if made.shown is not None:
        state.shown.append(made.shown)
    if made.after is not None:
        state.info, state.changed = made.after, True


def _spelled(
    state: Decided, original: ir.Model, settings: Settings, timer: StageTimer, *, prove: bool
) -> ir.Model:
    """Return the model to write: spelled for the target, without helper nodes."""
    with timer.stage("rewrite"):
        decision = state.decisions[LOWER.name] = LOWER.decide(state.info, settings)
        edit = Editor(state.info, copy=prove)
        differs = LOWER.apply(edit, decision, settings)
        join_skip_norms(edit.model, original, settings)
        lowering.spell_split_norms(edit, settings)
        joined = lowering.join_rms_norms(edit, settings)
        wanted = state.changed or settings.convert_to is None  # a conversion concerns only norms
        slow = slow_additions(edit.model, settings) if wanted else ()
    if not (differs or joined or slow or state.changed):
        return original
    if not prove:
        with timer.stage("count"):  # while the types are present, which a proof infers again
            info = ModelInfo(edit.model)
            finalize.define_functions(info, settings.target, settings.norm_form)
            state.final = prepare(edit.model, inferred=True).info
    with timer.stage("rewrite"):
        result = _finished(edit.model, original, state, settings)
    if prove:
        with timer.stage("prove"):
            after = state.final = prepare(result, written=True).info
        shown = proved(LOWER, state.info, after, decision, settings, timer)
        if shown.failures:
            reason = failure_of(shown)
            state.left_out.append(LeftOut(LOWER.name, reason))
            state.decisions[LOWER.name] = decision.left_out(reason)
            slow = ()
            if not state.changed:
                return original
            state.final = None
            result = _finished(state.info.model, original, state, settings)
    state.changed = True
    with timer.stage("rewrite"):
        finalize.settle_functions(result, original.ir_version)
        finalize.list_initializers(result)
        finalize.put_sigmoids_first(result)
        finalize.drop_empty_biases(result)
        if slow:
            info = ModelInfo(result)
            apart = sum(joined_into(info, node) for node in slow)
            state.sums = Sums(apart, saved_apart(info, slow))
        replace_by_sums(slow)  # Add and Sum compute the same, so a proof is not needed
        name_sources(result, original)
    return result


def _finished(model: ir.Model, original: ir.Model, state: Decided, settings: Settings) -> ir.Model:
    target, plan = settings.target, state.plan
    noted = finalize.note(target, len(plan.folds), len(plan.insertions))
    return finalize.finished(model, original, noted, target, settings.norm_form)
