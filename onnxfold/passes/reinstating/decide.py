"""Deciding which deferred norms are computed where they stood again: all that can, or none."""

from onnxfold.graph import ModelInfo
from onnxfold.passes.base import Settings
from onnxfold.passes.reinstating.find import find_deferred
from onnxfold.passes.reinstating.plan import FoundDeferred, ReinstatingPlan
from onnxfold.targets.deferral_gains import is_wanted


def decide(info: ModelInfo, settings: Settings) -> ReinstatingPlan:
    """Return the deferred norms of a model; they are left where deferral is wanted."""
    wanted, rows = is_wanted(settings), []
    for found in find_deferred(info):
        name, ref = found.site.name, info.ref(found.site.output)
        again = not wanted and found.refusal is None and not settings.excludes(name)
        rows.append(FoundDeferred(name, ref, again, found.refusal))
    return ReinstatingPlan(tuple(rows))
