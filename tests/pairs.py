"""Fewer rows than a product has, with every pair of its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import combinations, product
from typing import Any, TypeVar

import pytest

__all__ = ["pairs", "pairwise"]

Row = TypeVar("Row", bound=tuple[Any, ...])


def pairs(**columns: Iterable[Any]) -> pytest.MarkDecorator:
    """Give a test rows of values in which every two values of two columns meet."""
    return pytest.mark.parametrize(tuple(columns), pairwise(product(*columns.values())))


def pairwise(rows: Iterable[Row]) -> list[Row]:
    """Return some of the rows: values of two columns that meet in a row meet in one of these.

    Rows that may not be are left out of what is given, as in
    ``pairwise(row for row in product(names, opsets, types) if allowed(row))``.
    """
    meetings: dict[Hashable, list[Row]] = {}
    for row in rows:
        for pair in _pairs(row):
            meetings.setdefault(pair, []).append(row)
    missing, used = set(meetings), Counter[Hashable]()
    chosen: list[Row] = []
    for pair in sorted(meetings, key=lambda pair: len(meetings[pair])):
        if pair in missing:
            best = max(
                meetings[pair],
                key=lambda row: (
                    len(missing.intersection(_pairs(row))),
                    -sum(used[value] for value in enumerate(row)),
                ),
            )
            chosen.append(best)
            used.update(enumerate(best))
            missing.difference_update(_pairs(best))
    return chosen


def _pairs(row: tuple[Any, ...]) -> list[Hashable]:
    return list(combinations(enumerate(row), 2))
