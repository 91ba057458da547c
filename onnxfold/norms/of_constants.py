"""Norms of constants, which runtimes compute once, when they load the model."""

from dataclasses import replace

import numpy as np

from onnxfold.graph import ModelInfo, node_label
from onnxfold.norms.site import NormSite
from onnxfold.refusal import Refusal, RefusalCode


def refuse_constant(view: ModelInfo, site: NormSite) -> Refusal | None:
    """Refuse a norm of constants, where no change can pay, or return None."""
    if not view.is_constant(site.input):
        return None
    sentence = f"norm '{site.name}' reads constants, and runtimes compute it once"
    return Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(site.nodes[-1]),))


def with_equal_constants(view: ModelInfo, site: NormSite) -> NormSite:
    """Return the norm, refused if it subtracts the mean of constants that are all equal.

    Then x - mean(x) is 0 up to the roundings of the mean, which 1 / sqrt(epsilon) amplifies: no
    bound on roundings separates them from the result.
    """
    array = view.array(site.input) if site.subtracts_mean and site.refusal is None else None
    if array is None or array.size == 0:
        return site
    if not np.array_equal(array.max(axis=site.fiber.axes), array.min(axis=site.fiber.axes)):
        return site
    sentence = f"norm '{site.name}' reads equal constants: its result is only roundings"
    refusal = Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(site.nodes[-1]),))
    return replace(site, refusal=refusal)
