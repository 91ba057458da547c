"""The rule of a linear layer that takes gamma and beta: tested once, with numbers of its own."""

from __future__ import annotations

import numpy as np
import pytest

import onnxfold
from onnxfold.proof.absorption import AbsorptionRule, Reading
from tests.graphs import Array, graph, weights

LAYERS = 3


def test_layers_of_other_numbers_share_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, ...] | None] = []
    plain = AbsorptionRule.axes

    def seen(self: AbsorptionRule) -> tuple[int, ...] | None:
        found.append(plain(self))
        return found[-1]

    monkeypatch.setattr(AbsorptionRule, "axes", seen)
    made: dict[str, Array] = {}
    body, given = "", "x"
    for n in range(LAYERS):
        made |= weights(**{f"g{n}": (6,), f"b{n}": (6,), f"W{n}": (6, 6), f"c{n}": (6,)})
        body += f"n{n} = LayerNormalization<axis=-1>({given}, g{n}, b{n}) "
        body += f"m{n} = MatMul(n{n}, W{n}) a{n} = Add(m{n}, c{n}) "
        given = f"t{n}" if n < LAYERS - 1 else "y"
        body += f"{given} = Tanh(a{n}) "
    result = onnxfold.optimize(graph(body, "double[B,4,6] x", "double[B,4,6] y", made), check=0)
    assert result.report["proof"]["passed"]
    assert len(result.plan.fusions) == LAYERS
    assert found == [(2,)]


@pytest.mark.parametrize(
    ("reading", "size"),
    [
        (Reading((2,)), 3),
        (Reading((1, 3)), 20),
        (Reading((3, 1)), 20),
        (Reading((1,), (2, 2, 1)), 2),
        (Reading(()), 7),
    ],
)
def test_a_vector_is_read_as_it_is_spread(reading: Reading, size: int) -> None:
    shape = (2, 4, 3, 5)
    vector = np.arange(1.0, size + 1) if reading.axes else np.full(size, 2.0)
    array = reading.spread(vector, shape)
    assert np.broadcast_shapes(array.shape, shape) == shape
    read = reading.vector(array, shape, size)
    assert read is not None
    assert read.tolist() == vector.tolist()


def test_what_repeats_otherwise_than_the_weight_is_no_vector() -> None:
    reading = Reading((1,), (2, 2, 1))
    array = np.array([1.0, 2.0, 1.0, 3.0]).reshape(1, 4, 1)
    assert reading.vector(array, ("batch", 4, 3), 2) is None
