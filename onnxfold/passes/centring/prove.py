"""The certificate of a centring: the fibers of what was centred, and the norms that were folded."""

from __future__ import annotations

from onnxfold.graph import ModelInfo
from onnxfold.passes.plan import Plan
from onnxfold.proof import Certificate, Proof, prove

__all__ = ["prove_centring"]


def prove_centring(before: ModelInfo, after: ModelInfo, plan: Plan) -> Proof:
    """Check a model whose norms were folded; both are views of prepared models."""
    centred = [(weight.value, weight.fiber) for weight in plan.weights]
    centred += [(insertion.value, insertion.fiber) for insertion in plan.insertions]
    folded = tuple(fold.output for fold in plan.folds)
    return prove(before, after, Certificate(tuple(dict.fromkeys(centred)), folded))
