"""The kernels, by family; the row of an operator names the module of its kernel."""

from __future__ import annotations

__all__: list[str] = []
