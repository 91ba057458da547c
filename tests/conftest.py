"""Options of the suite."""

from __future__ import annotations

import pytest

_DEFAULT_GRAPHS = 2000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--graphs",
        type=int,
        default=_DEFAULT_GRAPHS,
        help="how many random graphs to fold (tests/soundness/test_random_graphs.py)",
    )
