"""Norms of constants are proved like others, from the stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import Fiber
from onnxfold.proof import mean_proofs, stored
from tests.graphs import Array, graph

C = np.random.default_rng(0).standard_normal((3, 2, 3))
D = np.random.default_rng(1).standard_normal(3)


def _spelled(x: str, y: str, axes: str) -> str:
    """A norm without an epsilon."""
    return (
        f"m_{y} = ReduceMean<keepdims=1>({x}, {axes}) d_{y} = Sub({x}, m_{y}) "
        f"s_{y} = Mul(d_{y}, d_{y}) v_{y} = ReduceMean<keepdims=1>(s_{y}, {axes}) "
        f"r_{y} = Sqrt(v_{y}) {y} = Div(d_{y}, r_{y}) "
    )


@pytest.mark.parametrize(
    ("body", "folds", "constants"),
    [
        # A shift of c is constant along both fibers, and the larger is more informative.
        (_spelled("c", "z", "last") + _spelled("c", "y", "outer"), 2, {"last": np.array([2])}),
        # A scalar whose mean is 0 is 0; the epsilon and the axes of the norms are none such.
        ("t = Add(c, number) " + _spelled("t", "y", "outer"), 1, {"number": np.array(2.5)}),
        ("t = Add(c, row) " + _spelled("t", "y", "outer"), 1, {"row": D}),
        (
            "t, k = Dropout(c, ratio, training) " + _spelled("t", "y", "outer"),
            1,
            {"ratio": np.array(0.5), "training": np.array(False)},
        ),
    ],
    ids=["two fibers", "a scalar", "a row", "a dropout that is told not to train"],
)
def test_a_norm_of_constants_is_proved(body: str, folds: int, constants: dict[str, Array]) -> None:
    outputs = "double[3,2,3] y" + (", double[3,2,3] z" if folds == 2 else "")
    made = {"c": C, "outer": np.array([0, 2])} | constants
    result = onnxfold.optimize(graph(body, "double[B] x", outputs, made))
    assert len(result.plan.folds) == folds
    assert result.report["proof"]["passed"]


def test_a_weight_of_zeros_takes_any_scale() -> None:
    """What is equal is then scaled as well, and a product with it says nothing of the bias."""
    body = "h = Conv(x, W) y = BatchNormalization(h, s, b, m, v)"
    made = {"W": np.zeros((4, 3, 1))}
    made |= {name: 0.5 + np.random.default_rng(2).random(4) for name in "sbmv"}
    result = onnxfold.optimize(graph(body, "double[2,3,4] x", "double[2,4,4] y", made))
    assert len(result.plan.scales) == 1
    assert result.report["proof"]["passed"]


def test_positions_that_are_resized_have_mean_0_along_their_channels() -> None:
    """As in YOLOS untrained: zeros have mean 0 along other fibers of 32 numbers, too."""
    body = (
        "h = MatMul(x, W) t = Concat<axis=1>(first, h) "
        'r = Resize<mode="cubic">(positions, none, none, sizes) s = Shape(r) '
        "two = Slice(s, zero, end) shape = Concat<axis=0>(two, rest) "
        "f = Reshape(r, shape) p = Transpose<perm=[0, 2, 1]>(f) "
        "e = Concat<axis=1>(first, p) a = Add(t, e) y = LayerNormalization(a, gamma)"
    )
    draw = np.random.default_rng(3).standard_normal
    made = {
        "W": draw((5, 32)), "first": draw((1, 1, 32)), "positions": np.zeros((1, 32, 4, 4)),
        "none": np.array([], np.float32), "sizes": np.array([1, 32, 4, 4]), "gamma": draw(32),
        "zero": np.array([0]), "end": np.array([2]), "rest": np.array([-1]),
    }  # fmt: skip
    result = onnxfold.optimize(graph(body, "double[1,16,5] x", "double[1,17,32] y", made))
    assert len(result.plan.folds) == 1
    assert result.report["proof"]["passed"]


def test_unlikely_fibers_of_a_weight_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of 4 d rows has many sets of d numbers; its columns' sets come first."""
    asked: list[tuple[str | None, str]] = []

    def has_zero_mean(tensor: ir.TensorProtocol, fiber: Fiber, *args: Any, **named: Any) -> bool:
        asked.append((tensor.name, str(fiber)))
        return stored.has_zero_mean(tensor, fiber, *args, **named)

    monkeypatch.setattr(mean_proofs, "has_zero_mean", has_zero_mean)
    body = (
        "h = MatMul(x, A) p = MatMul(h, B) s = Add(p, b) e = Relu(h) q = MatMul(e, C) "
        "a = Add(s, q) y = LayerNormalization(a, gamma)"
    )
    draw = np.random.default_rng(4).standard_normal
    made = {"A": draw((5, 32)), "B": draw((32, 8)), "C": draw((32, 8)), "b": draw(8),
            "gamma": draw(8)}  # fmt: skip
    result = onnxfold.optimize(graph(body, "double[3,5] x", "double[3,8] y", made))
    assert len(result.plan.folds) == 1
    assert result.report["proof"]["passed"]
    assert not [fiber for name, fiber in asked if name in {"B", "C"} and "axis 0" in fiber]
