"""The proof that another spelling computes the same: no value changes, no norm folds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfold.passes.base import Shown
from onnxfold.passes.plan import Plan

if TYPE_CHECKING:
    from onnxfold.graph import ModelInfo
    from onnxfold.passes.lower.decide import LoweringPlan

__all__ = ["prove"]


def prove(before: ModelInfo, after: ModelInfo, plan: LoweringPlan) -> Shown:
    """Check the prepared result against the model before it was spelled for the target."""
    from onnxfold.proof import prove as prove_folds
    from onnxfold.proof.reshapes import pull_reshapes

    return Shown(failures=prove_folds(before, pull_reshapes(after, before), Plan()).failures)
