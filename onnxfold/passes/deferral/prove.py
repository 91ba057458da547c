"""The certificate of deferral: what has a new name stands for no value of the model before."""

from __future__ import annotations

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import Shown
from onnxfold.passes.deferral.plan import DeferralPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models

__all__ = ["prove"]


def prove(before: ModelInfo, after: ModelInfo, plan: DeferralPlan) -> Shown:
    """Check ``after`` against ``before``: regions reach from each product back to the norm's x."""
    shown = prove_models(before, after, Certificate(by_name_alone=True))
    return Shown({"deferred_norms": len(plan.norms)}, shown.failures)
