"""Products with a Sigmoid, written Sigmoid first where the transformers optimizer fails."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfold


def operands(gate: str, product: str, domain: str = "") -> list[str]:
    """What the last product of a model with a norm that folds reads."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18, "other" : 1]>\n'
        "graph (float[4,8] x) => (float[4,8] y) {"
        " h = MatMul(x, W)  n = LayerNormalization<axis=-1>(h, G)"
        f" v = Mul({product})  s = Sigmoid(v)  y = {domain}Mul({gate}) }}"
    )
    rng = np.random.default_rng(0)
    weights = {"W": rng.standard_normal((8, 8)), "G": rng.standard_normal(8), "HALF": np.array(0.5)}
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(array), name))
    made: onnx.ModelProto = onnxfold.optimize(model, check=0).model
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
