"""The stages of optimize without files: fold a model, and prove the result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from onnxfold import pipeline
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.model_io.load import open_source
from onnxfold.options import Defer, Device, Folding
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.apply import apply as apply_centring
from onnxfold.passes.centring.decide import CentringDecision
from onnxfold.passes.findings import Findings
from onnxfold.passes.lower.decide import apply as apply_lowering
from onnxfold.passes.lower.decide import decide as decide_lowering
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.split_skip_norms import residual_calls
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.pipeline.decided import Decided
from onnxfold.pipeline.finalize import finished, note, settle_functions
from onnxfold.pipeline.proofs import prove_centring
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.proof import Proof
from onnxfold.recognition import find_norms
from onnxfold.streams.dataflow import walk_back
from onnxfold.streams.model_transfers import ModelTransfers
from onnxfold.target import Target
from tests.operators.roles import roles_of
from tests.soundness.float64 import evaluate, relative_error

__all__ = ["Folded", "evaluate", "fold", "forced", "relative_error"]


@dataclass(frozen=True, slots=True)
class Folded:
    """A model after the fold, the plan, and the proof of the one against the original."""

    model: onnx.ModelProto
    plan: Plan
    proof: Proof
    findings: Findings
    roles: Counter[str]


def fold(
    model: onnx.ModelProto,
    target: Target = Target.KERNELS,
    *,
    allow_split_bytes: int = 1 << 20,
    fuse: bool = False,
    fuse_affine: bool = False,
    exclude: str | None = None,
    count_roles: bool = False,
    defer: bool = False,
    device: Device = Device.CPU,
    folding: Folding = Folding.ALWAYS,
    prove: bool = True,
) -> Folded:
    """Fold everything that the plan finds worth it; ``fuse`` residual additions too.

    ``defer`` norms wherever that is exact, otherwise undo deferrals; ``count_roles``: find out
    which laws the plan rests on.
    """
    original = open_source(model).model
    deferral = Defer.ALL if defer else Defer.OFF
    settings = Settings(
        target,
        allow_split=allow_split_bytes,
        exclude=exclude,
        fuse_residual=fuse,
        defer=deferral,
        defer_means=defer,
        device=device,
        fold=folding,
    )
    without = frozenset[str]() if fuse_affine else AFFINE_PASSES
    without |= frozenset[str]() if defer else {"deferral"}
    roles: Counter[str] = Counter()
    if count_roles:
        roles = _roles(decide_all(prepare(original), settings, without=without))
    settings = replace(settings, fused_before=residual_calls(original))
    timer = StageTimer(None)
    folded = pipeline.fold(
        prepare(original), original, settings, timer, without=without, prove=prove
    )
    # A model that is left as it is has nothing to prove.
    proof = folded.proof or Proof(True, 0, 0, ())
    if folded.left_out:
        proof = Proof(False, 0, 0, tuple(left.reason for left in folded.left_out))
    return Folded(ir.to_proto(folded.model), folded.findings.plan, proof, folded.findings, roles)


def forced(model: onnx.ModelProto, plan: Plan, target: Target = Target.KERNELS) -> Folded:
    """Carry out a plan that nobody made for the model."""
    original = open_source(model).model
    settings = Settings(target, fuse_residual=False)
    findings = decide_all(prepare(original), settings, without=AFFINE_PASSES).findings
    before = prepare(original).info
    edit = Editor(before, copy=True)
    apply_centring(edit, CentringDecision(plan), settings)
    lowered = Editor(ModelInfo(edit.model))
    apply_lowering(lowered, decide_lowering(lowered.info, settings), settings)
    result = finished(lowered.model, original, note(target), target, settings.norm_form)
    proof = prove_centring(before, prepare(result).info, plan)
    settle_functions(result, original.ir_version)
    return Folded(ir.to_proto(result), plan, proof, replace(findings, plan=plan), Counter())


def _roles(decided: Decided) -> Counter[str]:
    """Count the roles of laws for the norms that could fold, before the model changes."""
    info, sites = decided.info, find_norms(decided.info)
    asked = {*(fold.output for fold in decided.plan.folds)}
    asked |= {output for output, _ in decided.plan.refusals}
    transfers = ModelTransfers(info, sites)
    graph = walk_back(transfers, [site for site in sites if info.ref(site.output) in asked])
    return roles_of(info, transfers, graph)
