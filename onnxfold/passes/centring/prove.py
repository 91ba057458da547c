"""The certificate of a centring: the fibers of what was centred, and the norms that were folded."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.centring.decide import CentringDecision
from onnxfold.passes.centring.plan import CentringPlan
from onnxfold.proof import Certificate, Proof
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, decision: CentringDecision) -> ProofOutcome:
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
