"""Weights before LayerNorms are shifted: what a LayerNorm does not see may be anything."""

from __future__ import annotations

__all__: list[str] = []
