"""Norms over other axes than the last, in operators that share their mean, as of tf2onnx."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import onnxfold
from tests import graphs
from tests.recognition.replay import random_feeds

# Convolutions of 12 and 72 terms, and a norm: some hundreds of roundings of numbers below 32.
BOUND = 512 * 2.0**-24 * 32
TYPES = {"float": np.float32, "double": np.float64, "float16": np.float16}
# y = x (r g) + (b - mean (r g)): x itself is read as well as x - mean(x).
NORM = """
    h = Conv<kernel_shape=[2,2], strides=[2,2]>(x, W, c)
    mean = ReduceMean<axes=[1], keepdims=1>(h)  negative = Neg(mean)  d = Sub(h, mean)
    square = Mul(d, d)  variance = ReduceMean<axes=[1], keepdims=1>(square)
    shifted = Add(variance, epsilon)  root = Sqrt(shifted)  inverse = Reciprocal(root)
    scale = Mul(inverse, g)  scaled = Mul(h, scale)  less = Mul(negative, scale)
    shift = Add(less, b)  n = Add(scaled, shift)  t = Relu(n)
    y = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(t, V)
"""


def model_of(dtype: str = "float", body: str = NORM) -> onnx.ModelProto:
    shapes = {"W": (8, 3, 2, 2), "c": (8,), "g": (1, 8, 1, 1), "b": (1, 8, 1, 1), "V": (5, 8, 3, 3)}
    made = graphs.weights(**shapes) | {"epsilon": np.array(1e-3)}
    inputs, outputs = f"{dtype}[N,3,4,4] x", f"{dtype}[N,5,2,2] y"
    return graphs.model(body, inputs, outputs, made, 13, dtype=TYPES[dtype])


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """By onnx's evaluator, because ONNX Runtime lacks a float64 convolution."""
    (result,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(result)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_norm_of_channels_loses_its_mean(dtype: str, target: str) -> None:
    model = model_of(dtype)
    result = onnxfold.optimize(model, target=target)
    (norm,) = result.report["inspect"]["norms"]
    assert (norm["action"], norm["axes"]) == ("rms", [1])
    means = [node for node in result.model.graph.node if node.op_type == "ReduceMean"]
    assert len(means) == 1
    assert len(result.model.graph.node) < len(model.graph.node)
    feeds = random_feeds(model)
    if target == "ort":  # whose operator onnx's evaluator does not know stands over last axes alone
        assert not any("Simplified" in node.op_type for node in result.model.graph.node)
    np.testing.assert_allclose(run(result.model, feeds), run(model, feeds), rtol=0, atol=BOUND)
    again = onnxfold.optimize(result.model, target=target)
    assert not again.report["changed"]


def test_in_float16_the_squares_would_overflow() -> None:
    result = onnxfold.optimize(model_of("float16"))
    (norm,) = result.report["inspect"]["norms"]
    assert norm["action"] == "keep"
    assert "trailing axes" in norm["reason"]["sentence"]


def test_a_mean_that_is_not_zero_stays() -> None:
    """A positive stream cannot be centered."""
    body = NORM.replace("h = Conv", "p = Conv").replace("(x, W, c)", "(x, W, c)\n    h = Relu(p)")
    result = onnxfold.optimize(model_of(body=body))
    (norm,) = result.report["inspect"]["norms"]
    assert norm["action"] == "keep"
