"""Weights in bad condition, for the model of `seeds`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.hostile.seeds import WIDTH

__all__ = ["CONDITIONS", "bad_conditions"]

CONDITIONS = (
    "plain",
    "gamma 0",
    "gamma 1e4",
    "denormal",
    "constant rows",
    "zero",
    "large mean",
    "mean of 30000",
    "near the largest number",
)


def bad_conditions(dtype: Any, rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """The weights of every condition, by its name."""
    square = rng.standard_normal((WIDTH, WIDTH))
    limits = np.finfo(dtype)
    return {
        "plain": {},
        "gamma 0": {"g": np.zeros(WIDTH)},
        "gamma 1e4": {"g": np.where(np.arange(WIDTH) % 2, 1e4, 0.0)},
        "denormal": {"W": square * 20 * float(limits.smallest_subnormal), "b": square[0] * 0},
        "constant rows": {"W": np.repeat(square[:, :1], WIDTH, 1), "b": np.full(WIDTH, 0.3)},
        "zero": {"W": square * 0, "b": square[0] * 0},
        "large mean": {"W": square + 1000},
        "mean of 30000": {"b": 30_000 + square[0]},
        "near the largest number": {"b": float(limits.max) * rng.uniform(-0.5, 0.5, WIDTH)},
    }
