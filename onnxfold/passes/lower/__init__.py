"""Lowering: which standard op, function or kernel computes each norm of a planned graph."""

from __future__ import annotations

__all__: list[str] = []
