"""Recognition of normalizations: every spelling yields the same :class:`NormSite`."""

from onnxfold.norms.bare_centrings import BareCentring, find_centrings
from onnxfold.norms.numbered_streams import streams
from onnxfold.norms.recognition import find_norms
from onnxfold.norms.site import EpsilonMode, NormForm, NormKind, NormSite

__all__ = [
    "BareCentring",
    "EpsilonMode",
    "NormForm",
    "NormKind",
    "NormSite",
    "find_centrings",
    "find_norms",
    "streams",
]
