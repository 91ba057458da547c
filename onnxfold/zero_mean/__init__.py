"""Which values could have mean 0 along a fiber, what that needs, and who would notice."""

from __future__ import annotations

from onnxfold.zero_mean.relations import Assumptions, Point, Relations
from onnxfold.zero_mean.walk import PointFacts, ZeroMeanGraph, walk_back

__all__ = ["Assumptions", "Point", "PointFacts", "Relations", "ZeroMeanGraph", "walk_back"]
