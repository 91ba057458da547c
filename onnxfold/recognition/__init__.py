"""Recognition of norms: every spelling yields the same :class:`onnxfold.norms.NormSite`."""

from onnxfold.recognition.find import find_norms
from onnxfold.recognition.numbered_streams import streams
from onnxfold.recognition.subtractions import find_centrings

__all__ = ["find_centrings", "find_norms", "streams"]
