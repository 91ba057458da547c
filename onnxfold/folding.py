"""A fold in memory: the plan carried out, proved, and brought into its final form.

Nothing is read from or written to files but weights; :mod:`onnxfold.pipeline` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.analysis import Analysis
from onnxfold.clock import Clock
from onnxfold.final_form import finished, inline_functions
from onnxfold.graph import GraphView
from onnxfold.graph.shapes import all_graphs
from onnxfold.lower.functions import DOMAIN, SIGNATURES
from onnxfold.lower.residual import residual_fusions
from onnxfold.lower.target import Target
from onnxfold.options import Options
from onnxfold.prepare import prepare
from onnxfold.rewrite import Applied, apply_fusions, apply_plan
from onnxfold.sources import Source

if TYPE_CHECKING:
    from onnxfold.proof import Proof

__all__ = ["Folded", "fold"]


@dataclass(frozen=True, slots=True)
class Folded:
    """The model after the plan, the given one where nothing changed; a proof where one was asked.

    A proof that failed is for the caller to act on.
    """

    model: ir.Model
    changed: bool
    proof: Proof | None


def fold(source: Source, analysis: Analysis, options: Options, clock: Clock) -> Folded:
    """Carry out the plan of an analysis, which uses up its working copy of the model."""
    with clock.stage("rewrite"):
        moved = _copy_of_moved(analysis) if options.check else None
        rewritten = _rewritten(source, analysis, options)
    if not rewritten.changed:
        return Folded(source.model, changed=False, proof=None)
    result = finished(rewritten.model, source.model, analysis.plan, options.target)
    proof: Proof | None = None
    if options.check:
        with clock.stage("prove"):
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

    before, after = (GraphView(prepare(model).model) for model in (source.model, result))
    after = pull_reshapes(after, before)
    plan, steps = analysis.plan, []
    last = None if moved is None else GraphView(moved)
    if last is not None and plan.fusions:
        between = last if analysis.between is None else GraphView(analysis.between)
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
    lowered = GraphView(applied.model)
    fusions = residual_fusions(lowered)
    apply_fusions(lowered, fusions)
    fused_before = sum(
        node.domain == DOMAIN and node.op_type in SIGNATURES and SIGNATURES[node.op_type].residual
        for graph in all_graphs(source.model)
        for node in graph
    )
    return Applied(applied.model, applied.changed or len(fusions) != fused_before)
