"""The passes, in the order of the pipeline: prepare, affine, scales, centring, lower."""

from __future__ import annotations

__all__: list[str] = []
