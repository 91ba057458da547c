"""Deciding how a target spells the norms that stay, and whether additions join their norms."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfold.graph import ModelInfo
from onnxfold.norms import find_norms
from onnxfold.options import Target
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.targets import TargetLowering

__all__ = ["LoweringPlan", "decide"]


@dataclass(frozen=True, slots=True)
class LoweringPlan:
    """The norms that get a cheaper spelling, by reference, and whether residuals are fused."""

    respelled: tuple[str, ...] = ()
    fuse_residual: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.respelled or self.fuse_residual)

    def left_out(self, reason: str) -> LoweringPlan:
        """Return the plan to keep every spelling."""
        del reason  # the report names the pass
        return LoweringPlan()


def decide(info: ModelInfo, settings: Settings) -> LoweringPlan:
    """Return which norms one operator computes cheaper and as exactly."""
    sites = find_norms(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    cheaper = (site for site in sites if lowering.calls_in_place(site))
    fuses = settings.fuse_residual and settings.target is Target.KERNELS
    return LoweringPlan(tuple(info.ref(site.output) for site in cheaper), fuses)
