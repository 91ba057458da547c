"""A model repository for Triton Inference Server: the optimized model, its kernels, its config."""

from __future__ import annotations

__all__: list[str] = []
