"""The operator table: what each operator does to means, channels and factors."""

from __future__ import annotations

__all__: list[str] = []
