"""The proof of each pass: the claims that its plan makes about two versions, and its counts.

The plan only names what was changed; the proof tests each claim on the arrays themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.operands import operand, producer_of
from onnxfold.norms import NormSite
from onnxfold.operators.table import row_of
from onnxfold.passes.affine.plan import Absorption, AffineFusion, AffinePlan
from onnxfold.passes.base import NormsPlan, ProofOutcome
from onnxfold.passes.basis.plan import RotationPlan, ScalePlan
from onnxfold.passes.basis.split_gamma import SplitPlan
from onnxfold.passes.centring.decide import CentringDecision
from onnxfold.passes.centring.plan import CentringPlan
from onnxfold.passes.deferral.find_deferred import find_deferred
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.passes.deferral.readers import halving, image, layer_weight
from onnxfold.passes.deferral.undefer import ReinstatingPlan
from onnxfold.passes.lower.decide import LoweringPlan
from onnxfold.passes.prepare.working_copy import taken_apart
from onnxfold.passes.scales.plan import ScaleFusion, ScalesPlan
from onnxfold.passes.scales.writer import channel_op, embedded
from onnxfold.passes.stream_forms.plan import ReadersPlan, ShiftingPlan
from onnxfold.proof import Certificate, LinearLayer, Proof, ScaledWeight, TurnedWeight
from onnxfold.proof import prove as prove_models
from onnxfold.refusal import Refusal


def of_scales(before: ModelInfo, after: ModelInfo, plan: ScalesPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the removed operators."""
    shown = prove_scales(before, after, plan.fusions)
    counts = {"scaled_weights": shown.scaled_weights, "shifted_biases": shown.shifted_biases}
    return ProofOutcome(counts, shown.failures)


def prove_scales(before: ModelInfo, after: ModelInfo, fusions: Iterable[ScaleFusion]) -> Proof:
    """Check a model whose linear layers absorbed the scales after them; both are prepared."""
    values = before.by_ref()
    claims = (claim for fusion in fusions for claim in _claims(before, values, fusion))
    return prove_models(before, after, Certificate(scaled=tuple(claims), rounding=True))


def _claims(
    before: ModelInfo, values: Mapping[str, ir.Value], fusion: ScaleFusion
) -> Iterator[ScaledWeight]:
    node = producer_of(values.get(fusion.output))
    op = None if node is None else channel_op(before, node)
    if op is None or op.scale is None:
        return
    for place in fusion.scaled:
        vector = embedded(op.scale, fusion.part, place.channels.size)
        if vector.size == place.channels.size:
            yield ScaledWeight(place.value, place.reader.node, place.channels, vector)


def of_affine(before: ModelInfo, after: ModelInfo, plan: AffinePlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the moved values."""
    shown = prove_affine(before, after, plan.fusions)
    counts = {"scaled_weights": shown.scaled_weights, "shifted_biases": shown.shifted_biases}
    return ProofOutcome(counts, shown.failures)


def prove_affine(before: ModelInfo, after: ModelInfo, fusions: Iterable[AffineFusion]) -> Proof:
    """Check a model in which gammas and betas have moved; both are views of prepared models."""
    layers = dict.fromkeys(_layer(reader) for fusion in fusions for reader in fusion.readers)
    return prove_models(before, after, Certificate(linear=tuple(layers)))


def _layer(absorption: Absorption) -> LinearLayer:
    place, bias = absorption.bias, None
    if place is not None and not place.behind and place.reader.node == absorption.reader.node:
        bias = place.reader.index
    return LinearLayer(
        absorption.reader.node,
        absorption.weight.value,
        absorption.weight.channels,
        absorption.outer,
        bias,
        absorption.factor,
        absorption.weight.fixed,
        0 if place is None else place.halves,
    )


def of_tables(before: ModelInfo, after: ModelInfo, plan: AffinePlan) -> ProofOutcome:
    """Check ``after`` against ``before``: regions extend from the sums back to norms' inputs."""
    del plan
    shown = prove_models(before, after, Certificate(by_name_alone=True))
    return ProofOutcome(failures=shown.failures)


def of_centring(before: ModelInfo, after: ModelInfo, decision: CentringDecision) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the fibers of the changed weights."""
    shown = prove_centring(before, after, decision.plan)
    counts = {"folded_norms": shown.folded_norms, "centred_weights": shown.centred_weights}
    return ProofOutcome(counts, shown.failures)


def prove_centring(before: ModelInfo, after: ModelInfo, plan: CentringPlan) -> Proof:
    """Check a model whose norms were folded; both are views of prepared models."""
    centred = [(weight.value, weight.fiber) for weight in plan.weights]
    centred += [(insertion.value, insertion.fiber) for insertion in plan.insertions]
    centred += plan.parts
    folded = tuple(fold.output for fold in plan.folds)
    return prove_models(before, after, Certificate(tuple(dict.fromkeys(centred)), folded))


def of_deferral(before: ModelInfo, after: ModelInfo, plan: DeferralPlan) -> ProofOutcome:
    """Check ``after`` against ``before``: regions extend from each product back to the norm's x."""
    values = before.by_ref()
    centred = tuple(
        (before.ref(weight), each.fiber)
        for norm in plan.norms
        for each in norm.centred
        if (weight := _read(values[each.reader.node], each.reader.index)) is not None
    )
    scaled = tuple(
        ScaledWeight(before.ref(weight), each.reader.node, edit.channels, edit.vector)
        for norm in plan.norms
        for each in norm.halved
        if (weight := _read(values[each.reader.node], each.reader.index)) is not None
        for edit in (halving(each),)
    )
    rounding = not any(norm.bound for norm in plan.norms)  # it reports how much more it may be
    certificate = Certificate(centred, scaled=scaled, by_name_alone=True, rounding=rounding)
    shown = prove_models(before, after, certificate)
    return ProofOutcome({"deferred_norms": len(plan.norms)}, shown.failures)


def _read(output: ir.Value, index: int) -> ir.Value | None:
    node = output.producer()
    return None if node is None else operand(node, index)


def of_reinstating(before: ModelInfo, after: ModelInfo, plan: ReinstatingPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the norms to count."""
    sites = [found.site for found in find_deferred(before)]
    chosen = [site for site in sites if before.ref(site.output) in plan.norms]
    centred = tuple(
        weight for site in chosen if site.subtracts_mean for weight in _weights(before, site)
    )
    shown = prove_models(before, after, Certificate(centred, by_name_alone=True))
    return ProofOutcome({"reinstated_norms": len(plan.norms)}, shown.failures)


def _weights(info: ModelInfo, site: NormSite) -> Iterator[tuple[str, Fiber]]:
    """Yield the weights downstream of a LayerNorm whose means the proof may find to be 0."""
    waiting: list[tuple[ir.Value, Fiber]] = [(site.input, site.fiber)]
    for value, fiber in waiting:
        for node in value.consumers():
            if row_of(node).layer is not None:
                found = layer_weight(info, node, value, fiber)
                weight = None if isinstance(found, Refusal) else node.inputs[found[0]]
                if weight is not None and not isinstance(found, Refusal):
                    yield info.ref(weight), found[1]
                continue
            behind = image(info, node, value, fiber)
            if behind is not None:
                waiting.append((node.outputs[0], behind))


def of_norms(count: str) -> Callable[[ModelInfo, ModelInfo, NormsPlan], ProofOutcome]:
    """Return the proof of a pass whose plan only names norms, which are reported as ``count``."""

    def prove(before: ModelInfo, after: ModelInfo, plan: NormsPlan) -> ProofOutcome:
        shown = prove_models(before, after, Certificate(folded=plan.norms, rounding=True))
        return ProofOutcome({count: shown.folded_norms}, shown.failures)

    return prove


def of_shifting(before: ModelInfo, after: ModelInfo, plan: ShiftingPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the fibers of the changed weights."""
    fibers = tuple((weight.value, weight.fiber) for weight in plan.weights)
    shown = prove_models(before, after, Certificate(centred=fibers))
    return ProofOutcome({"shifted_weights": shown.centred_weights}, shown.failures)


def of_scaled_streams(before: ModelInfo, after: ModelInfo, plan: ScalePlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the constants that took a power of c."""
    scaled = tuple(
        ScaledWeight(place.value, place.reader.node, place.channels, np.array([factor]))
        for place, factor in plan.factors()
    )
    shown = prove_models(before, after, Certificate(scaled=scaled, rounding=True))
    return ProofOutcome({"scaled_streams": len(plan.streams)}, shown.failures)


def of_rotation(before: ModelInfo, after: ModelInfo, plan: RotationPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the weights that took a matrix."""
    turned = tuple(
        TurnedWeight(weight.value, weight.fiber, matrix)
        for stream in plan.streams
        for matrix in (stream.matrix(),)
        for weight in stream.weights
    )
    shown = prove_models(before, after, Certificate(turned=turned))
    return ProofOutcome({"rotated_weights": shown.rotated_weights}, shown.failures)


def of_split_gammas(before: ModelInfo, after: ModelInfo, plan: SplitPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names what was divided and multiplied."""
    scaled = tuple(
        ScaledWeight(place.value, place.reader.node, place.channels, vector)
        for split in plan.splits
        for places, vector in (
            (split.norm_places, 1 / split.factors),
            (split.weight_places, split.factors),
        )
        for place in places
    )
    shown = prove_models(before, after, Certificate(scaled=scaled))
    return ProofOutcome({"split_gammas": len(plan.splits)}, shown.failures)


def of_readers(before: ModelInfo, after: ModelInfo, plan: ReadersPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan is only used for a count."""
    failures = prove_models(before, after, Certificate()).failures
    return ProofOutcome({} if failures else {"changed_readers": len(plan.layers)}, failures)


def of_lowering(before: ModelInfo, after: ModelInfo, plan: LoweringPlan) -> ProofOutcome:
    """Check what is written against the last version."""
    del plan
    return of_copy(before, after)


def of_copy(before: ModelInfo, after: ModelInfo) -> ProofOutcome:
    """Check that two models are the same function, by nothing but the models."""
    return ProofOutcome(failures=prove_models(before, after, Certificate()).failures)


def unlike(file: ModelInfo, copy: ModelInfo, *, written: bool = False) -> str:
    """Return why a version was not proved to be what a file has, or nothing if it was.

    ``written``: the file was made of the version, not the version of the file.
    """
    apart = taken_apart(file)
    versions = [file, copy] if apart is None else [file, apart, copy]
    for before, after in pairwise(versions[::-1] if written and apart is None else versions):
        failures = of_copy(before, after).failures
        if failures:
            return failures[0]
    return ""


def as_one(shown: Iterable[ProofOutcome]) -> Proof:
    """Return one proof with the counts of all passes, each of which was proved."""
    counts: dict[str, int] = {"folded_norms": 0, "centred_weights": 0}
    for part in shown:
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0) + count
    return Proof(passed=True, failures=(), **counts)
