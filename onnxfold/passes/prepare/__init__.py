"""A working copy of a model in which every norm stands alone."""

from __future__ import annotations

__all__: list[str] = []
