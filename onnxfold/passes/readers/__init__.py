"""Linear layers behind CRMSNorms read d - 1 channels, and again d."""

from __future__ import annotations

__all__: list[str] = []
