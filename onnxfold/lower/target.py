"""The targets by name; light to import, so that the command line can list them."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Target"]


class Target(StrEnum):
    """What the output model may contain."""

    PORTABLE = "portable"
    ONNX = "onnx"
    ORT = "ort"
