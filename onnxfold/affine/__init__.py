"""Diagonals and shifts: y = g * x + s per channel, followed through a graph into weights."""

from __future__ import annotations

from onnxfold.affine.channels import SCALAR, Channels
from onnxfold.affine.laws import Absorbs, Passes, Unseen, pulled, react

__all__ = ["SCALAR", "Absorbs", "Channels", "Passes", "Unseen", "pulled", "react"]
