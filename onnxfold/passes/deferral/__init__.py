"""The scale of an RMSNorm waits behind linear layers, or cancels in the next norm."""

from __future__ import annotations

__all__: list[str] = []
