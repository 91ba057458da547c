"""Spells RMSNorms as LayerNorms."""

from onnxfold.graph.edit import Editor
from onnxfold.passes.base import Settings
from onnxfold.passes.norms_plan import NormsPlan, named_sites
from onnxfold.targets.lowering import TargetLowering


def apply(edit: Editor, plan: NormsPlan, settings: Settings) -> None:
    """Put a LayerNorm of the same epsilon, gamma and beta in the place of every norm named."""
    lowering = TargetLowering(edit.info, settings.target)
    for site in named_sites(edit, plan):
        edit.stand_in(lowering.restored(site), site.last, site.nodes)
