"""Options of the suite, and the prices that its small models are planned with."""

from __future__ import annotations

import pytest

from onnxfold.passes import costs

_DEFAULT_GRAPHS = 2000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--graphs",
        type=int,
        default=_DEFAULT_GRAPHS,
        help="how many random graphs to fold (tests/soundness/test_random_graphs.py)",
    )


@pytest.fixture(autouse=True)
def _prices_of_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what an operator and a row cost: models of a few channels would be left alone.

    Tests with the mark of that name have them, and so have commands in processes of their own.
    """
    if request.node.get_closest_marker("prices") is None:
        table = {target: costs.costs_of(target).of_elements() for target in costs.Target}
        monkeypatch.setattr(costs, "_COSTS", table)
