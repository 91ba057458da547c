"""Decide how a target spells the norms that stay, and whether additions join their norms."""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.norms import NORMS
from onnxfold.operators.functions import DOMAIN, SIGNATURES
from onnxfold.options import Target
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.gelus import late_halves
from onnxfold.passes.split_skip_norms import is_split
from onnxfold.targets.lowering import TargetLowering
from onnxfold.targets.norm_settings import common_settings


@dataclass(frozen=True, slots=True)
class LoweringPlan:
    """The norms that get a cheaper spelling, by reference, and whether residuals are fused.

    ``halve_first``: whether a Gelu that halves late is changed to halve first.
    """

    respelled: tuple[str, ...] = ()
    fuse_residual: bool = False
    halve_first: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.respelled or self.fuse_residual or self.halve_first)

    def left_out(self, reason: str) -> "LoweringPlan":
        """Return the plan to keep every spelling."""
        del reason  # the report names the pass
        return LoweringPlan()


def decide(info: ModelInfo, settings: Settings) -> LoweringPlan:
    """Return which norms one operator computes more cheaply and as exactly."""
    if settings.convert_to is not None:
        return LoweringPlan()  # only the requested form changes
    sites = NORMS.of(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    cheaper = [site for site in sites if lowering.calls_in_place(site)]
    if settings.target is Target.KERNELS:
        own = (node for node in info.nodes() if node.domain == DOMAIN)
        called = [node for node in own if node.op_type in SIGNATURES]
        in_float = [site for site in cheaper if site.input.dtype is not ir.DataType.DOUBLE]
        kept = common_settings(called, map(lowering.setting, in_float))
        cheaper = [
            site
            for site in cheaper
            if lowering.becomes_one(site)
            or lowering.setting(site) in kept
            or is_split(site.nodes[-1])
        ]
    fuses = settings.fuse_residual and settings.target is Target.KERNELS
    respelled = tuple(info.ref(site.output) for site in cheaper)
    return LoweringPlan(respelled, fuses, halve_first=bool(late_halves(info)))
