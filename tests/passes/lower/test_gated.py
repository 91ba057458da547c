"""Products with a Sigmoid, written Sigmoid first where the transformers optimizer fails."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfold
from tests.graphs import model, weights


def operands(gate: str, product: str, domain: str = "") -> list[str]:
    """What the last product of a model with a norm that folds reads."""
    body = (
        "h = MatMul(x, W) n = LayerNormalization<axis=-1>(h, G) "
        f"v = Mul({product}) s = Sigmoid(v) y = {domain}Mul({gate})"
    )
    made_of = weights(W=(8, 8), G=(8,)) | {"HALF": np.array(0.5)}
    given = model(body, "float[4,8] x", "float[4,8] y", made_of, dtype=np.float32)
    if domain:
        given.opset_import.append(onnx.helper.make_opsetid("other", 1))
    made: onnx.ModelProto = onnxfold.optimize(given, check=0).model
    return list(made.graph.node[-1].input)


@pytest.mark.parametrize(
    ("gate", "product", "expected"),
    [
        ("x, s", "n, x", ["s", "x"]),
        ("s, x", "n, x", ["s", "x"]),
        ("x, s", "n, HALF", ["x", "s"]),
        ("x, n", "n, x", ["x", "n"]),
    ],
)
def test_the_sigmoid_of_a_computed_product_stands_first(
    gate: str, product: str, expected: list[str]
) -> None:
    assert operands(gate, product) == expected


def test_an_operator_of_another_domain_keeps_the_order_of_its_inputs() -> None:
    assert operands("x, s", "n, x", "other.") == ["x", "s"]
