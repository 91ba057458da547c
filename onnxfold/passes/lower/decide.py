"""Deciding how a target spells the norms that stay, and whether additions join their norms."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from onnxfold.graph import ModelInfo
from onnxfold.norms import find_norms
from onnxfold.norms.site import NormKind, NormSite
from onnxfold.operators.functions import DOMAIN
from onnxfold.options import Target
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.gelus import late_halves
from onnxfold.passes.lower.targets import TargetLowering

_Setting = tuple[NormKind, int, float]


@dataclass(frozen=True, slots=True)
class LoweringPlan:
    """The norms that get a cheaper spelling, by reference, and whether residuals are fused.

    ``halve_first``: whether a Gelu that halves late does so first.
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
    """Return which norms one operator computes cheaper and as exactly."""
    if settings.convert_to is not None:
        return LoweringPlan()  # only the form that was asked for changes
    sites = find_norms(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    cheaper = [site for site in sites if lowering.calls_in_place(site)]
    if settings.target is Target.KERNELS:
        called = [site for site in sites if site.nodes[-1].domain == DOMAIN]
        kept = _most_common([*called, *cheaper])
        cheaper = [site for site in cheaper if _setting(site) in kept]
    fuses = settings.fuse_residual and settings.target is Target.KERNELS
    respelled = tuple(info.ref(site.output) for site in cheaper)
    return LoweringPlan(respelled, fuses, halve_first=bool(late_halves(info)))


def _setting(site: NormSite) -> _Setting:
    return site.kind, len(site.fiber.axes), site.epsilon


def _most_common(sites: Iterable[NormSite]) -> set[_Setting]:
    """Return one setting for each kind of norm: a file has one function of a name."""
    found: dict[NormKind, _Setting] = {}
    for setting, _ in Counter(map(_setting, sites)).most_common():
        found.setdefault(setting[0], setting)
    return set(found.values())
