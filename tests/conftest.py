"""Options of the suite, and the prices that its small models are planned with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# They find what passes name (onnxfold.graph.model_info).
import onnxfold.recognition
import onnxfold.targets.lowering  # noqa: F401
from onnxfold.targets import costs
from tests.cli.command import Cli

_DEFAULT_GRAPHS = 2000
_PRICES = {target: costs.costs_of(target) for target in costs.Target}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--graphs",
        type=int,
        default=_DEFAULT_GRAPHS,
        help="how many random graphs to fold (tests/soundness/test_random_graphs.py)",
    )


@pytest.fixture(autouse=True, scope="session")
def _prices_of_elements() -> Iterator[None]:
    """Leave out what an operator and a row cost: models of a few channels would be left alone.

    Commands in processes of their own have them.
    """
    table = {target: prices.of_elements() for target, prices in _PRICES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "_COSTS", table)
        yield


@pytest.fixture(autouse=True)
def _all_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all prices back where a test has the mark of that name."""
    if request.node.get_closest_marker("prices") is not None:
        monkeypatch.setattr(costs, "_COSTS", _PRICES)


@pytest.fixture
def cli(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cli:
    capture = "capfd" if "capfd" in request.fixturenames else "capsys"  # not both
    return Cli(monkeypatch, request.getfixturevalue(capture))
