"""Deciding which deferred norms are computed where they stood again: all that can, or none."""

from __future__ import annotations

from onnxfold.graph import ModelInfo
from onnxfold.options import Defer
from onnxfold.passes.base import Settings
from onnxfold.passes.reinstating.find import find_deferred
from onnxfold.passes.reinstating.plan import FoundDeferred, ReinstatingPlan

__all__ = ["decide"]


def decide(info: ModelInfo, settings: Settings) -> ReinstatingPlan:
    """Return the deferred norms of a model; they are left where deferral is asked for."""
    off, rows = settings.defer is Defer.OFF, []
    for found in find_deferred(info):
        name, ref = found.site.name, info.ref(found.site.output)
        again = off and found.refusal is None and not settings.excludes(name)
        rows.append(FoundDeferred(name, ref, again, found.refusal))
    return ReinstatingPlan(tuple(rows))
