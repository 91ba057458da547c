"""Recognition of norms: every spelling yields the same :class:`onnxfold.norms.NormSite`."""

from onnxfold.recognition.find import find_centrings, find_norms, streams

__all__ = ["find_centrings", "find_norms", "streams"]
