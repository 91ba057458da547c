"""The proof that linear layers do the operators behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfold.passes.base import Shown

if TYPE_CHECKING:
    from onnxfold.graph import ModelInfo
    from onnxfold.passes.scales.plan import ScalesPlan

__all__ = ["prove"]


def prove(before: ModelInfo, after: ModelInfo, plan: ScalesPlan) -> Shown:
    """Check ``after`` against ``before``; the plan names the operators that are gone."""
    from onnxfold.proof import prove_scales

    shown = prove_scales(before, after, plan.fusions)
    counts = {"scaled_weights": shown.scaled_weights, "shifted_biases": shown.shifted_biases}
    return Shown(counts, shown.failures)
