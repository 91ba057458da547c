"""Recognition of normalizations: every spelling yields the same :class:`NormSite`."""

from __future__ import annotations

from onnxfold.norms.find import find_norms
from onnxfold.norms.site import EpsilonMode, NormForm, NormKind, NormSite
from onnxfold.norms.streams import streams

__all__ = ["EpsilonMode", "NormForm", "NormKind", "NormSite", "find_norms", "streams"]
