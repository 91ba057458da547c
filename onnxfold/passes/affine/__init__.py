"""Gamma and beta of a norm move into the linear layers behind it."""

from __future__ import annotations

__all__: list[str] = []
