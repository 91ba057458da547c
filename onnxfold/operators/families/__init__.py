"""Algebraic families of operators: each follows fibers back and forth through its members."""

from __future__ import annotations

__all__: list[str] = []
