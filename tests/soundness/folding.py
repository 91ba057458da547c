"""The stages of optimize without files: fold a model, and prove the result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from onnxfold import pipeline
from onnxfold.model_io.sources import Source, open_source
from onnxfold.options import Options, Target
from onnxfold.passes.analysis import Analysis, analyse
from onnxfold.passes.centring.dataflow import walk_back
from onnxfold.passes.centring.relations import Relations
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stage_timer import StageTimer
from onnxfold.proof import Proof
from tests.operators.roles import roles_of
from tests.soundness.float64 import evaluate, relative_error

__all__ = ["Folded", "evaluate", "fold", "forced", "relative_error"]


@dataclass(frozen=True, slots=True)
class Folded:
    """A model after the fold, the plan, and the proof of the one against the original."""

    model: onnx.ModelProto
    plan: Plan
    proof: Proof
    analysis: Analysis
    roles: Counter[str]


def fold(
    model: onnx.ModelProto,
    target: Target = Target.PORTABLE,
    *,
    allow_split_bytes: int = 1 << 20,
    fuse: bool = False,
    fuse_affine: bool = False,
    exclude: str | None = None,
    count_roles: bool = False,
) -> Folded:
    """Fold everything that the plan finds worth it; ``fuse`` residual additions too.

    ``count_roles``: find out which laws the plan rests on.
    """
    source = open_source(ir.from_proto(model))
    analysis = analyse(
        prepare(source.model).model,
        target,
        allow_split_bytes=allow_split_bytes,
        fuse_affine=fuse_affine,
        exclude=exclude,
    )
    return _finished(source, analysis, Options(target=target, fuse_residual=fuse), count_roles)


def forced(model: onnx.ModelProto, plan: Plan, target: Target = Target.PORTABLE) -> Folded:
    """Carry out a plan that nobody made for the model."""
    source = open_source(ir.from_proto(model))
    analysis = replace(analyse(prepare(source.model).model, target), plan=plan)
    return _finished(source, analysis, Options(target=target, fuse_residual=False))


def _finished(
    source: Source, analysis: Analysis, options: Options, count_roles: bool = False
) -> Folded:
    roles = _roles(analysis) if count_roles else Counter()
    folded = pipeline.fold(source, analysis, options, StageTimer(None))
    # A model that is left as it is has nothing to prove.
    proof = folded.proof or Proof(True, 0, 0, ())
    return Folded(ir.to_proto(folded.model), analysis.plan, proof, analysis, roles)


def _roles(analysis: Analysis) -> Counter[str]:
    """Count the roles of laws behind the norms that could fold, before the model changes."""
    view, sites = analysis.view, analysis.sites
    asked = {*(fold.output for fold in analysis.plan.folds)}
    asked |= {output for output, _ in analysis.plan.refusals}
    relations = Relations(view, sites)
    graph = walk_back(relations, [site for site in sites if view.ref(site.output) in asked])
    return roles_of(view, relations, graph)
