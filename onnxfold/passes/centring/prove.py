"""The proof that folded norms read zero-mean inputs, and that nothing else sees the centring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfold.passes.base import Shown

if TYPE_CHECKING:
    from onnxfold.graph import ModelInfo
    from onnxfold.passes.centring.decide import CentringDecision

__all__ = ["prove"]


def prove(before: ModelInfo, after: ModelInfo, decision: CentringDecision) -> Shown:
    """Check ``after`` against ``before``; the plan names the fibers of the changed weights."""
    from onnxfold.proof import prove as prove_folds

    shown = prove_folds(before, after, decision.plan)
    counts = {"folded_norms": shown.folded_norms, "centred_weights": shown.centred_weights}
    return Shown(counts, shown.failures)
