"""How much of a model is run to relate one pair of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.proof import Certificate, prove
from onnxfold.proof.neighbourhood import Neighbourhood
from onnxfold.proof.region import Region
from onnxfold.shapes import infer
from tests.graphs import graph, weights

_DEEP = 20


def _gelu(end: str) -> ModelInfo:
    chain = " ".join(f"x{n + 1} = Tanh(x{n})" for n in range(_DEEP))
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    g (double[B,4] x0) => (double[B,4] y) <double half = {{0.5}}, double one = {{1.0}}> {{
      {chain} e = Erf(x{_DEEP}) w = Add(one, e) {end} }}"""
    return infer(ir.from_proto(onnx.parser.parse_model(text)))


@pytest.fixture(name="sizes")
def _sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many nodes of the original every region has."""
    sizes = list[int]()
    region = Neighbourhood.region

    def noted(self: Neighbourhood, *pair: Any, **options: Any) -> Region:
        made = region(self, *pair, **options)
        sizes.append(len(made.old.nodes))
        return made

    monkeypatch.setattr(Neighbourhood, "region", noted)
    return sizes


def test_half_of_a_value_is_related_to_it_without_what_is_before(sizes: list[int]) -> None:
    """A new value may correspond to its own operand, which does not depend on it."""
    before = _gelu(f"m = Mul(half, w) y = Mul(x{_DEEP}, m)")
    after = _gelu(f"h = Mul(half, x{_DEEP}) y = Mul(h, w)")
    assert prove(before, after, Certificate()).passed
    assert max(sizes) < _DEEP


def _layers(layer: str) -> ModelInfo:
    body = " ".join(layer.format(n, n + 1) for n in range(_DEEP))
    made = weights(W=(4, 4), bias=(4,), gamma=(4,), beta=(4,)) | {"tiny": np.float64(1e-5)}
    return infer(graph(body, "double[B,4] y0, double[B,4] s0", f"double[B,4] y{_DEEP}", made))


def test_a_sum_that_the_original_lacks_is_not_sought_in_all_layers_before_it(
    sizes: list[int],
) -> None:
    """The original sums within its norm: only what both models compute relates them."""
    products = "t{0} = MatMul(y{0}, W) "
    norm = "com.microsoft.SkipLayerNormalization<epsilon=1e-5>"
    before = _layers(f"{products} y{{1}}, , , s{{1}} = {norm}(t{{0}}, s{{0}}, gamma, beta, bias)")
    sums = "a{1} = Add(t{0}, bias) s{1} = Add(a{1}, s{0}) "
    after = _layers(f"{products} {sums} y{{1}} = LayerNormalization(s{{1}}, gamma, beta)")
    assert prove(before, after, Certificate()).passed
    assert max(sizes) < _DEEP


def test_what_the_other_model_does_not_read_is_not_sought_in_all_layers_before_it(
    sizes: list[int],
) -> None:
    """The sum that a new norm reads is only a guess at what the original sums within its norm."""
    layer = ("t{0} = MatMul(y{0}, W) a{1} = Add(t{0}, bias) s{1} = Add(a{1}, y{0}) "
             "m{1} = ReduceMean<axes=[-1]>(s{1}) d{1} = Sub(s{1}, m{1}) q{1} = Mul(d{1}, d{1}) "
             "v{1} = ReduceMean<axes=[-1]>(q{1}) e{1} = Add(v{1}, tiny) r{1} = Sqrt(e{1}) "
             "n{1} = Div(d{1}, r{1}) p{1} = Mul(n{1}, gamma) y{1} = Add(p{1}, beta) ")  # fmt: skip
    fused = ("t{0} = MatMul(y{0}, W) k{1} = Add(t{0}, bias) z{1} = Add(k{1}, y{0}) "
             "y{1} = LayerNormalization<epsilon=1e-5>(z{1}, gamma, beta) ")  # fmt: skip
    assert prove(_layers(layer), _layers(fused), Certificate()).passed
    assert max(sizes) < _DEEP


def test_keys_that_an_attention_hands_on_do_not_depend_on_its_queries() -> None:
    """It reads queries that the original's keys are not computed from, for another output."""
    node = "com.microsoft.MultiHeadAttention<num_heads=2>(q, k, k, , , , past, past)"
    signs = " ".join(f"z{n + 1} = Neg(z{n})" for n in range(_DEEP))
    before = (f"o = {node} r = Reshape(k, heads) t = Transpose<perm=[0,2,1,3]>(r) "
              f"z0 = Concat<axis=2>(past, t) {signs} y = Identity(z{_DEEP})")  # fmt: skip
    inputs = "double[B,3,8] q, double[B,3,8] k, double[B,2,5,4] past"
    models = [
        infer(graph(each, inputs, "double[B,3,8] o, double[B,2,8,4] y",
                    {"heads": np.array([0, 0, 2, 4])}))
        for each in (before, f"o, y = {node}")
    ]  # fmt: skip
    assert prove(*models, Certificate()).passed


def _normalised(variance: float) -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (double[B,3,5,5] x) => (double[B,4,5,5] y) {
      c = Conv(x, W) y = BatchNormalization(c, gamma, beta, mean, variance) }"""
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    made = {name: draw.random(4) + 0.5 for name in ("gamma", "beta", "mean", "variance")}
    made |= {"W": draw.standard_normal((4, 3, 1, 1)), "variance": variance * made["variance"]}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in made.items())
    return model


@pytest.mark.parametrize("variance", [1.0, 1e7, 1e8])
def test_large_variances_of_a_detector_go_into_its_weights(variance: float) -> None:
    result = onnxfold.optimize(_normalised(variance))
    assert "left_out" not in result.report
    assert [node.op_type for node in result.model.graph.node] == ["Conv"]


@pytest.mark.parametrize("large", [1.0, 2.0**25, 2.0**29, 2.0**45, 2.0**100])
def test_a_change_beside_large_numbers_is_seen(large: float) -> None:
    def sums(shift: float) -> ModelInfo:
        text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (double[B,4] x) => (double[B,4] y)
        <double[4] c = {{{large}, 1, 1, 1}}, double[4] s = {{{shift}, 0, 0, 0}}> {{
          t = Add(x, s) y = Add(t, c) }}"""
        return infer(ir.from_proto(onnx.parser.parse_model(text)))

    assert prove(sums(0.0), sums(0.0), Certificate()).passed
    assert not prove(sums(0.0), sums(1.0), Certificate()).passed
