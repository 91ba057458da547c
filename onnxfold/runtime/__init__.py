"""ONNX Runtime with the kernel library: registration, self-test, timing, diagnosis."""

from __future__ import annotations

__all__: list[str] = []
