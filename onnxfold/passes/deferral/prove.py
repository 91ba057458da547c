"""The certificate of deferral: what has a new name is new, but for copies of weights."""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.deferral.half_floats import halving
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.proof import Certificate, ScaledWeight
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: DeferralPlan) -> ProofOutcome:
    """Check ``after`` against ``before``: regions reach from each product back to the norm's x."""
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
    rounding = not any(norm.bound for norm in plan.norms)  # which says how much more it may be
    certificate = Certificate(centred, scaled=scaled, by_name_alone=True, rounding=rounding)
    shown = prove_models(before, after, certificate)
    return ProofOutcome({"deferred_norms": len(plan.norms)}, shown.failures)


def _read(output: ir.Value, index: int) -> ir.Value | None:
    node = output.producer()
    return None if node is None else node.inputs[index]
