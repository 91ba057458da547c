"""Scales over different channels of one product: what one weight takes of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

import onnxfold
from tests.passes.scales.scale_graphs import assert_moved

HEADS, SIZE = 2, 3


@pytest.mark.parametrize("first", ["[6] whole", "[2,1] per head", "[3] within"])
@pytest.mark.parametrize("second", ["[6] whole", "[2,1] per head", "[3] within"])
def test_one_weight_takes_two_scales_and_the_proof_follows(first: str, second: str) -> None:
    dims = [[int(n) for n in text.partition("]")[0][1:].split(",")] for text in (first, second)]
    steps, last = [], "m"
    for number, shape in enumerate(dims):
        if shape == [HEADS * SIZE]:
            steps.append(f"v{number} = Mul({last}, s{number})")
        else:
            steps += [
                f"h{number} = Reshape({last}, heads)",
                f"p{number} = Mul(h{number}, s{number})",
                f"v{number} = Reshape(p{number}, joined)",
            ]
        last = f"v{number}"
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        agraph (double[2,4,3] x) => (double[2,4,6] y) {{
            m = MatMul(x, W)
            {" ".join(steps)}
            y = Relu({last})
        }}"""
    )
    rng = np.random.default_rng(5)
    arrays = {f"s{n}": rng.uniform(0.5, 2.0, shape) for n, shape in enumerate(dims)}
    arrays |= {"W": rng.standard_normal((3, 6))}
    arrays |= {"heads": np.array([0, 0, HEADS, SIZE]), "joined": np.array([0, 0, HEADS * SIZE])}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    result = onnxfold.optimize(model)
    assert result.proof is not None
    assert result.proof.passed
    assert result.proof.scaled_weights
    assert "Mul" not in [node.op_type for node in result.model.graph.node]


@pytest.mark.parametrize("factor", ["eight", "four"])
def test_layers_that_share_a_bias_of_zeros_take_a_scale_each(factor: str) -> None:
    """As transformers' DETR: zeros are any multiple of zeros, and their reader says which."""
    body = (
        "p = MatMul(x, V) a = Add(p, nothing) q = MatMul(x, V2) e = Add(q, nothing) "
        "h = Transpose<perm=[0,2,1]>(a) k0 = Transpose<perm=[0,2,1]>(e) "
        f"c = Mul(h, eight) f = Mul(k0, {factor}) g = Tanh(c) y = Add(f, g)"
    )
    assert_moved(body, 2, {"nothing": np.zeros(6), "four": np.array(4.1)})


@pytest.mark.parametrize(
    "body",
    [
        "p = MatMul(x, V) a = Add(p, nothing) c = Mul(a, eight) q = MatMul(x, V2) "
        "e = Add(q, nothing) f = Mul(e, four) y = Add(f, c)",
        "p = MatMul(x, V) a = Add(p, nothing) c = Mul(a, eight) q = MatMul(c, U) "
        "e = Add(q, nothing) y = Mul(e, four)",
    ],
    ids=["beside one another", "one behind the other"],
)
def test_zeros_take_the_scale_of_the_layer_behind_which_its_reader_stands(body: str) -> None:
    """The sum has the name of the product that it has taken over."""
    made = {"nothing": np.zeros(6), "four": np.array(4.1)}
    square = np.random.default_rng(6).standard_normal((6, 6))
    assert_moved(body, 2, made | ({"U": square} if "U)" in body else {}))
