"""The proof of reinstated norms: the regions behind them compute the same in both models."""

from __future__ import annotations

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import Shown
from onnxfold.passes.reinstating.plan import ReinstatingPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models

__all__ = ["prove"]


def prove(before: ModelInfo, after: ModelInfo, plan: ReinstatingPlan) -> Shown:
    """Check ``after`` against ``before``; the plan only says how many norms to count."""
    shown = prove_models(before, after, Certificate(by_name_alone=True))
    return Shown({"reinstated_norms": len(plan.norms)}, shown.failures)
