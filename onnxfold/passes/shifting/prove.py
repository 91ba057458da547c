"""The proof of shifted weights: differences that are constant along fibers, and end in norms."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.shifting.plan import ShiftingPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: ShiftingPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the fibers of the changed weights."""
    fibers = tuple((weight.value, weight.fiber) for weight in plan.weights)
    shown = prove_models(before, after, Certificate(centred=fibers))
    return ProofOutcome({"shifted_weights": shown.centred_weights}, shown.failures)
