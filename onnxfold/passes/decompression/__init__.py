"""Streams without their last channel get it back, and CRMSNorms are RMSNorms again."""

from __future__ import annotations

__all__: list[str] = []
