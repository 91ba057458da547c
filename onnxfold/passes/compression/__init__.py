"""Streams of mean 0 are stored without their last channel, and their norms are CRMSNorms."""

from __future__ import annotations

__all__: list[str] = []
