"""What of a long list of parameters every run of the tests takes, and what campaigns alone do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["some"]


def some(values: Iterable[Any], *, each: int) -> list[Any]:
    """Leave to campaigns what comes between the first of every so many."""
    marked = pytest.mark.campaign
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marked)
        if place % each
        else value
        for place, value in enumerate(values)
    ]
