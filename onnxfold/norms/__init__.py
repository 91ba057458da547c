"""Recognition of normalizations: every spelling yields the same :class:`NormSite`."""

from onnxfold.norms.numbered_streams import streams
from onnxfold.norms.recognition import find_norms
from onnxfold.norms.site import EpsilonMode, NormForm, NormKind, NormSite

__all__ = ["EpsilonMode", "NormForm", "NormKind", "NormSite", "find_norms", "streams"]
