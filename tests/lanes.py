"""What of a long list of parameters every run of the tests takes, and what campaigns alone do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["quick", "some"]


def some(values: Iterable[Any], *, each: int) -> list[Any]:
    """Leave to campaigns what comes between the first of every so many."""
    return [_later(value) if place % each else value for place, value in enumerate(values)]


def quick(values: Iterable[Any], *, slow: Callable[[Any], bool]) -> list[Any]:
    """Leave to campaigns what takes long."""
    return [_later(value) if slow(value) else value for value in values]


def _later(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.campaign)
