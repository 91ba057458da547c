"""Options of the suite, and the prices that its small models are planned with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

# They find what passes name (onnxfold.graph.model_info).
import onnxfold.recognition
import onnxfold.streams.model_transfers
import onnxfold.targets.lowering  # noqa: F401
from onnxfold.target import TRAITS
from tests.cli.command import Cli

_DEFAULT_GRAPHS = 2000
_PRICED = dict(TRAITS)


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
    with pytest.MonkeyPatch.context() as patch:
        for target, traits in _PRICED.items():
            prices = replace(traits.prices, row=0, operator=0)
            patch.setitem(TRAITS, target, replace(traits, prices=prices))
        yield


@pytest.fixture(autouse=True)
def _all_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all prices back where a test has the mark of that name."""
    if request.node.get_closest_marker("prices") is not None:
        for target, traits in _PRICED.items():
            monkeypatch.setitem(TRAITS, target, traits)


@pytest.fixture
def cli(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cli:
    capture = "capfd" if "capfd" in request.fixturenames else "capsys"  # not both
    return Cli(monkeypatch, request.getfixturevalue(capture))
