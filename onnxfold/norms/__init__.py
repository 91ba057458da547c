"""Norms and subtractions of means, however they are spelled; `recognition` finds them upstream."""

from onnxfold.graph.model_info import Fact
from onnxfold.norms.site import BareCentring, EpsilonMode, NormForm, NormKind, NormSite

NORMS: Fact[tuple[NormSite, ...]] = Fact("norms")
"""Every norm of the main graph and of all bodies, one site each, in topological order."""

CENTRINGS: Fact[tuple[BareCentring, ...]] = Fact("bare centerings")
"""Every subtraction of a mean from an activation that no norm contains, in order."""

__all__ = [
    "CENTRINGS",
    "NORMS",
    "BareCentring",
    "EpsilonMode",
    "NormForm",
    "NormKind",
    "NormSite",
]
