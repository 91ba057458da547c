"""The proof of a decompression: v = E u along every stream, and equal norms."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.compression.plan import CompressionPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: CompressionPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan only names the norms to count."""
    shown = prove_models(before, after, Certificate(folded=plan.norms))
    return ProofOutcome({"decompressed_norms": shown.folded_norms}, shown.failures)
