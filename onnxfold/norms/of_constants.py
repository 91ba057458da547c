"""Norms of constants, which runtimes compute once, when they load the model."""

from onnxfold.graph import ModelInfo, node_label
from onnxfold.norms.site import NormSite
from onnxfold.refusal import Refusal, RefusalCode


def refuse_constant(view: ModelInfo, site: NormSite) -> Refusal | None:
    """Refuse a norm of constants, where no change can pay, or return None."""
    if not view.is_constant(site.input):
        return None
    sentence = f"norm '{site.name}' reads constants, and runtimes compute it once"
    return Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(site.nodes[-1]),))
