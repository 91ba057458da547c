"""The geometry of normalization over real data: what every norm reads and writes, streamed."""

from __future__ import annotations

from onnxfold.geometry.measurement import Measuring, measured

__all__ = ["Measuring", "measured"]
