"""Per-channel scales and shifts move into the linear layer before them."""

from __future__ import annotations

__all__: list[str] = []
