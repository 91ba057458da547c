"""Spells RMSNorms as LayerNorms."""

from onnxfold.graph.edit import Editor
from onnxfold.norms import find_norms
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.targets import TargetLowering
from onnxfold.passes.restoring.plan import RestoringPlan


def apply(edit: Editor, plan: RestoringPlan, settings: Settings) -> None:
    """Put a LayerNorm of the same epsilon, gamma and beta in the place of every norm named."""
    wanted = set(plan.norms)
    found = [(edit.info.ref(site.output), site.within(edit)) for site in find_norms(edit.info)]
    lowering = TargetLowering(edit.info, settings.target)
    for ref, site in found:
        if ref in wanted:
            edit.stand_in(lowering.restored(site), site.last, site.nodes)
