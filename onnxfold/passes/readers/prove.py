"""The proof of changed readers: (E w) A = w (E' A) for each, and y = E w behind each norm."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.readers.plan import ReadersPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: ReadersPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan is asked for a count alone."""
    failures = prove_models(before, after, Certificate()).failures
    return ProofOutcome({} if failures else {"changed_readers": len(plan.layers)}, failures)
