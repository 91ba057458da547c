"""Gelus that dynamo spells in an order that sessions cannot fuse."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from tests import graphs
from tests.sessions import executed, outputs

WIDTH = 8
LINES = {
    "root": ("h", "ROOT"),
    "sum": ("e", "ONE"),
    "half": ("HALF", "t"),
    "gelu": ("h", "g"),
}


def model(
    order: dict[str, tuple[str, str]] = LINES,
    *,
    norm: bool = False,
    more: str = "",
    given: str = "y",
) -> onnx.ModelProto:
    """A Gelu between linear layers, as dynamo exports it; ``norm``: with one behind that folds."""
    last = "r = MatMul(gelu, V)  y = LayerNormalization<axis=-1>(r, G)" if norm else "y = Neg(gelu)"
    outputs = ", ".join(f"float[B,4,{WIDTH}] {name}" for name in given.split())
    scaled, total, half, gelu = (", ".join(order[name]) for name in LINES)
    body = (
        f"m = MatMul(x, W) h = Add(m, B) s = Div({scaled}) e = Erf(s) t = Add({total}) "
        f"g = Mul({half}) gelu = Mul({gelu}) {more} {last}"
    )
    numbers = {"ROOT": np.sqrt(2.0), "ONE": 1.0, "HALF": 0.5, "THIRD": 1 / 3}
    made = graphs.weights(W=(WIDTH, WIDTH), V=(WIDTH, WIDTH), B=(WIDTH,), G=(WIDTH,))
    made |= {name: np.array(number) for name, number in numbers.items()}
    return graphs.model(body, f"float[B,4,{WIDTH}] x", outputs, made, dtype=np.float32)


def operators(given: onnx.ModelProto, folder: Path) -> list[str]:
    """The operators that a session executes."""
    return [node.op_type for node in executed(given, folder).graph.node]


def orders() -> Iterator[dict[str, tuple[str, str]]]:
    """Every order of the operands of what commutes."""
    for turned in product((False, True), repeat=3):
        names = [name for name, turn in zip(("sum", "half", "gelu"), turned, strict=True) if turn]
        yield {name: pair[::-1] if name in names else pair for name, pair in LINES.items()}


@pytest.mark.parametrize("order", list(orders()))
def test_a_session_makes_one_operator_of_it(
    order: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    given = model(order)
    made = onnxfold.optimize(given, target="ort")
    assert "Erf" in operators(given, tmp_path)
    assert operators(made.model, tmp_path) == ["MatMul", "BiasGelu", "Neg"]
    assert not onnxfold.optimize(made.model, target="ort").changed


@pytest.mark.parametrize("target", ["onnx", "kernels"])
def test_other_targets_write_it_beside_what_folds_alone(target: str, tmp_path: Path) -> None:
    made = onnxfold.optimize(model(norm=True), target=target).model
    assert "BiasGelu" in operators(made, tmp_path)
    assert not onnxfold.optimize(model(), target=target).changed


def test_the_numbers_are_the_same() -> None:
    """Halving is exact: without fusions, every bit."""
    given = model()
    made = onnxfold.optimize(given, target="ort").model
    x = 4 * np.random.default_rng(1).standard_normal((50, 4, WIDTH)).astype(np.float32)
    before, after = (outputs(each, {"x": x}, level="none")[0] for each in (given, made))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "given",
    [
        model(LINES | {"half": ("THIRD", "t")}),
        model(LINES | {"sum": ("e", "THIRD")}),
        model(LINES | {"gelu": ("m", "g")}),
        model(LINES | {"half": ("t", "t")}),
        model(given="y g"),
        model(more="again = Neg(g)", given="y again"),
    ],
)
def test_what_is_no_gelu_or_is_read_by_others_stays(given: onnx.ModelProto) -> None:
    assert not onnxfold.optimize(given, target="ort").changed


def test_a_conversion_is_of_norms_alone() -> None:
    made = onnxfold.convert(model(norm=True), to="rms").model
    halving = next(node for node in made.graph.node if "HALF" in node.input)
    assert "t" in halving.input
