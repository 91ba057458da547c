"""The proof that another spelling computes the same: no value changes, no norm folds."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.lower.decide import LoweringPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: LoweringPlan) -> ProofOutcome:
    """Check the prepared result against the model before it was spelled for the target."""
    return ProofOutcome(failures=prove_models(before, after, Certificate()).failures)
