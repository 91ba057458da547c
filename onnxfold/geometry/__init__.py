"""The geometry of normalization over real data: what every norm reads and writes, streamed."""

from onnxfold.geometry.measurement import Measuring, measured

__all__ = ["Measuring", "measured"]
