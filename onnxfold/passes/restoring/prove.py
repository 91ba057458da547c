"""The proof of restored norms: equal results, from means that are 0 in the weights."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.restoring.plan import RestoringPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: RestoringPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan only names the norms to count."""
    shown = prove_models(before, after, Certificate(folded=plan.norms))
    return ProofOutcome({"folded_norms": shown.folded_norms}, shown.failures)
