"""The proof that gammas and betas went where they act the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfold.passes.base import Shown

if TYPE_CHECKING:
    from onnxfold.graph import ModelInfo
    from onnxfold.passes.affine.plan import AffinePlan

__all__ = ["prove"]


def prove(before: ModelInfo, after: ModelInfo, plan: AffinePlan) -> Shown:
    """Check ``after`` against ``before``; the plan names the values that changed places."""
    from onnxfold.proof import prove_affine

    shown = prove_affine(before, after, plan.fusions)
    counts = {"scaled_weights": shown.scaled_weights, "shifted_biases": shown.shifted_biases}
    return Shown(counts, shown.failures)
