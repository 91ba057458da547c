"""Edits of weights as arrays: centring, scaling, shifting, computed while they are written."""

from __future__ import annotations

__all__: list[str] = []
