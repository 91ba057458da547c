"""What can be folded in a model, and the plan for it: everything before anything changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.graph import ModelInfo
from onnxfold.norms import NormKind, NormSite, find_norms
from onnxfold.options import DEFAULT_RANGE_LIMIT, DEFAULT_SPLIT_BYTES, Target
from onnxfold.passes.affine.apply import apply_affine, apply_scales
from onnxfold.passes.affine.decide import AffineDecision, Weighing, decide_affine
from onnxfold.passes.centring.decide import Demand, count_foldable, decide
from onnxfold.passes.centring.relations import Assumptions, Embeddings, Relations
from onnxfold.passes.costs import elements
from onnxfold.passes.fusion import ScaleFusion
from onnxfold.passes.lower.targets import TargetLowering, costs_of
from onnxfold.passes.plan import Plan
from onnxfold.passes.ranges import (
    RangeWarning,
    affine_ranges,
    scale_ranges,
)
from onnxfold.passes.scales.decide import decide_scales
from onnxfold.refusal import Refusal, RefusalCode

__all__ = ["Analysis", "Description", "analyse"]


@dataclass(frozen=True, slots=True)
class Description:
    """A model as it came, before anything moved: its size, and a report row for each norm."""

    opset: int
    nodes: int
    parameters: int
    norms: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The norms of a model, what happens to each, and the counts of the paper.

    ``refusals`` holds, by reference of the norm's output, why a norm is not folded.
    ``algorithm1`` counts the norms that fold under the rules of the paper's Algorithm 1 (outputs
    of norms count as centred, embeddings as opaque), ``algorithm1_embed_centred`` the same with a
    centring behind every embedding.  ``affine_refusals`` holds why gamma or beta stays,
    ``description`` the model as it came, ``between`` a copy with gammas and betas moved but not
    yet the scales, where both do and a proof is to follow, ``ranges`` the weights whose range grows
    much.
    """

    view: ModelInfo
    sites: tuple[NormSite, ...]
    lowering: TargetLowering
    plan: Plan
    refusals: dict[str, Refusal]
    algorithm1: int
    algorithm1_embed_centred: int
    description: Description
    affine_refusals: dict[str, Refusal] = field(default_factory=dict)
    between: ir.Model | None = None
    ranges: tuple[RangeWarning, ...] = ()


def analyse(
    model: ir.Model,
    target: Target = Target.PORTABLE,
    *,
    allow_split_bytes: int = DEFAULT_SPLIT_BYTES,
    exclude: str | None = None,
    fuse_affine: bool = False,
    range_limit: float = DEFAULT_RANGE_LIMIT,
    overflowing: Collection[str] = (),
    for_proof: bool = True,
) -> Analysis:
    """Find the norms of a prepared model and plan their folding.

    ``fuse_affine`` moves gamma and beta into the linear layers behind, and scales into those
    before, in ``model`` itself, before the rest is planned; weights whose range this widens more
    than ``range_limit`` times are named.  ``exclude`` is a regular expression;
    norms whose name it matches anywhere stay as they are.  ``overflowing`` are references of
    weights that must not be centred.  Without ``for_proof`` no copy is kept between the steps.
    Raises UsageError when ``exclude`` is no regular expression.
    """
    view = ModelInfo(model)
    sites = find_norms(view)
    excluded = _pattern(exclude)
    description = _describe(view, sites)
    moved = AffineDecision((), ())
    scales: tuple[ScaleFusion, ...] = ()
    between: ir.Model | None = None
    ranges: tuple[RangeWarning, ...] = ()
    if fuse_affine:
        moved = _decide_affine(view, sites, target, allow_split_bytes, excluded, overflowing)
        ranges = affine_ranges(view, sites, moved.fusions, range_limit)
        apply_affine(view, sites, moved.fusions)
        if moved.fusions:
            view = ModelInfo(model)
            sites = find_norms(view)
        scales = decide_scales(view, sites, allow_split_bytes=allow_split_bytes)
        if scales:
            ranges += scale_ranges(view, scales, range_limit)
            between = model.clone() if moved.fusions and for_proof else None
            apply_scales(view, scales)
            view = ModelInfo(model)
            sites = find_norms(view)
    lowering = TargetLowering(view, target, sites)
    demands, refused = _demands(view, sites, lowering, target, excluded)
    relations = Relations(view, sites)
    plan = decide(
        relations,
        demands,
        costs_of(target),
        allow_split_bytes=allow_split_bytes,
        overflowing=overflowing,
    )
    refused |= dict(plan.refusals)
    layer_norms = [site for site in sites if site.kind is NormKind.LAYER_NORM]
    return Analysis(
        view,
        sites,
        lowering,
        replace(plan, fusions=moved.fusions, scales=scales),
        refused,
        count_foldable(relations, layer_norms, Assumptions(True, Embeddings.OPAQUE)),
        count_foldable(relations, layer_norms, Assumptions(True, Embeddings.CENTRED)),
        description,
        dict(moved.refusals),
        between,
        ranges,
    )


def _decide_affine(
    view: ModelInfo,
    sites: Sequence[NormSite],
    target: Target,
    allow_split_bytes: int,
    excluded: re.Pattern[str] | None,
    overflowing: Collection[str],
) -> AffineDecision:
    lowering = TargetLowering(view, target, sites)
    kept = [site for site in sites if excluded is None or not excluded.search(site.name)]
    costs = costs_of(target)

    @cache
    def folds() -> frozenset[str]:
        demands, _ = _demands(view, sites, lowering, target, excluded)
        plan = decide(
            Relations(view, sites),
            demands,
            costs,
            allow_split_bytes=allow_split_bytes,
            overflowing=overflowing,
        )
        return frozenset(fold.output for fold in plan.folds)

    def saving(site: NormSite) -> int:
        """Return what the norm without beta saves: an Add where it cannot add beta itself."""
        count = elements(view.shape(site.input))
        if site.kind is NormKind.DYT:
            return count * costs.addition
        if not costs.bias or view.ref(site.output) not in folds():
            return 0
        return count * costs.bias

    return decide_affine(
        view,
        kept,
        allow_split_bytes=allow_split_bytes,
        keep=lowering.keep_affine,
        weighing=Weighing(costs.addition, saving),
    )


def _demands(
    view: ModelInfo,
    sites: Sequence[NormSite],
    lowering: TargetLowering,
    target: Target,
    excluded: re.Pattern[str] | None,
) -> tuple[list[Demand], dict[str, Refusal]]:
    """Return the norms that may fold with what that saves, and why the others may not."""
    refused: dict[str, Refusal] = {}
    demands: list[Demand] = []
    for site in sites:
        refusal = _refuse_early(site, lowering, excluded)
        if refusal is not None:
            refused[view.ref(site.output)] = refusal
            continue
        count = elements(view.shape(site.input))
        demands.append(Demand(site, costs_of(target).gain(count, site.beta is not None)))
    return demands, refused


def _describe(view: ModelInfo, sites: Sequence[NormSite]) -> Description:
    tensors = {
        id(tensor): tensor
        for graph in view.graphs
        for value in graph.initializers.values()
        if (tensor := view.tensor(value)) is not None
    }
    return Description(
        view.opset,
        sum(1 for _ in view.nodes()),
        sum(prod(tensor.shape.numpy()) for tensor in tensors.values()),
        tuple(
            {
                "ref": view.ref(site.output),
                "name": site.name,
                "kind": site.kind.value,
                "form": site.form.value,
                "input": site.input.name,
                "output": site.output.name,
                "axes": list(site.fiber.axes),
                "size": site.size,
                "epsilon": site.epsilon,
                "moves_by_rounding": site.moves_by_rounding,
                "affine": [
                    part
                    for part, value in (("gamma", site.gamma), ("beta", site.beta))
                    if value is not None
                ],
            }
            for site in sites
        ),
    )


def _pattern(exclude: str | None) -> re.Pattern[str] | None:
    if exclude is None:
        return None
    try:
        return re.compile(exclude)
    except re.error as error:
        raise UsageError(f"--exclude {exclude!r} is not a regular expression: {error}") from error


def _refuse_early(
    site: NormSite, lowering: TargetLowering, excluded: re.Pattern[str] | None
) -> Refusal | None:
    if site.refusal is not None:
        return site.refusal
    if site.kind is NormKind.RMS_NORM:
        return Refusal(RefusalCode.ALREADY_RMS, "is an RMSNorm already", ())
    if not site.subtracts_mean:
        sentence = f"{site.kind.value} does not subtract the mean"
        return Refusal(RefusalCode.NOT_CENTRED_NORM, sentence, ())
    if excluded is not None and excluded.search(site.name):
        return Refusal(RefusalCode.EXCLUDED, "excluded by name", ())
    return lowering.refuse_rms(site)
