"""Norms whose scales wait behind linear layers get them back: what deferral does, undone."""

from __future__ import annotations

__all__: list[str] = []
