"""Norms of constants that are all equal, of which only roundings remain."""

from dataclasses import replace

import numpy as np

from onnxfold.graph import ModelInfo, node_label
from onnxfold.norms.site import NormSite
from onnxfold.refusal import Refusal, RefusalCode


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
