"""LayerNorms become RMSNorms: the means move out of the weights before them."""

from __future__ import annotations

__all__: list[str] = []
