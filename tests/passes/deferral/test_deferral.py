"""Deferral on small graphs in float64: where the scale goes, and what cancels it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.passes.deferral.plan import DeferralPlan
from tests.graphs import graph, weights
from tests.lanes import some
from tests.passes.affine.affine_graphs import error
from tests.passes.deferral.deferral_graphs import (
    BODIES,
    attention,
    defer,
    feed_forward,
    forced,
    glu,
    rms_graph,
)

BOUND = 1e-12  # float64 throughout


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
@pytest.mark.parametrize("name", BODIES)
def test_the_scale_is_multiplied_where_the_fewest_elements_pass(name: str, opset: int) -> None:
    build, multiplied, cancelled = BODIES[name]
    found = defer(build(opset))
    (norm,) = found.plan.norms
    assert {held.value for held in norm.multiplied} == multiplied
    assert {output for output, _ in norm.cancelled} == cancelled
    found.assert_right()


def test_products_behind_several_results_of_a_node_have_names_of_their_own() -> None:
    body = (
        "j = MatMul(n, J) a, b, c = Split<axis=2>(j, sizes) d = Relu(a) y = MatMul(d, V) "
        "e = Sigmoid(b) f = Sigmoid(c) "
    )
    outputs = "double[B,T,3] y, double[B,T,2] e, double[B,T,1] f"
    sizes = np.array([160, 2, 1])
    found = defer(rms_graph(body, outputs=outputs, J=(6, 163), V=(160, 3), sizes=sizes))
    (norm,) = found.plan.norms
    assert {held.value for held in norm.multiplied} == {"y", "b", "c"}
    found.assert_right()


@pytest.mark.parametrize(
    "weight",
    ["W1 = DequantizeLinear<axis=1>(Q, S) ", "h1 = Cast<to=10>(F) W1 = Cast<to=11>(h1) "],
)
def test_a_weight_behind_operators_is_no_activation(weight: str) -> None:
    """A product of two activations grows with the rows; a layer's product does not."""
    body = weight + "h = MatMul(n, W1) y = MatMul(h, V)"
    rng = np.random.default_rng(3)
    quantised = rng.integers(-127, 127, (6, 12)).astype(np.int8)
    made = {"Q": quantised, "S": rng.uniform(0.01, 0.1, 12), "F": rng.standard_normal((6, 12))}
    found = defer(rms_graph(body, V=(12, 3), opset=23, **made))
    (norm,) = found.plan.norms
    assert {held.value for held in norm.multiplied} == {"y"}
    found.assert_right()


def test_one_product_of_all_parts_is_less_than_one_of_each() -> None:
    """As many elements, in one operator."""
    body = "j = MatMul(n, J) a, b, c = Split<axis=2, num_outputs=3>(j) y = Relu(a)"
    outputs = "double[B,T,4] y, double[B,T,4] b, double[B,T,4] c"
    found = defer(rms_graph(body, outputs=outputs, J=(6, 12)))
    (norm,) = found.plan.norms
    assert [held.value for held in norm.multiplied] == ["j"]
    found.assert_right()


def test_degrees_add_in_products() -> None:
    norm = defer(glu("g = Relu(h)", 18)).norm
    assert [held.scale.degree for held in norm.multiplied] == [2]
    norm = defer(feed_forward("Relu(h)")).norm
    assert [held.scale.degree for held in norm.multiplied] == [1]


def test_a_factor_of_the_norm_itself_takes_its_scale() -> None:
    """A gate of one number per row has fewer elements than its cofactor."""
    body = "gate = ReduceSum<keepdims=1>(x, last) m = Mul(n, gate) r = Sigmoid(m) "
    body += "h = MatMul(n, W) z = MatMul(r, V) y = Add(h, z)"
    found = defer(rms_graph(body, W=(6, 3), V=(6, 3)))
    assert [table.indices for norm in found.plan.norms for table in norm.tables] == [(1,)]
    found.assert_right()


def test_a_norm_of_the_norm_itself_cancels_its_scale() -> None:
    second = "r = RMSNormalization<axis=-1, epsilon=0.1>(n, ones)"
    body = f"h = MatMul(n, W) {second} z = MatMul(r, V) y = Add(h, z)"
    model = rms_graph(body, opset=23, W=(6, 3), V=(6, 3), ones=np.ones(6))
    found = defer(model)
    (norm,) = (each for each in found.plan.norms if each.output == "n")
    assert [output for output, _ in norm.cancelled] == ["r"]
    found.assert_right()


def test_a_norm_whose_reader_was_deferred_is_deferred_in_the_same_run() -> None:
    body = "r = RMSNormalization<axis=-1, epsilon=0.1>(n, ones) y = MatMul(r, V)"
    model = rms_graph(body, opset=23, V=(6, 3), ones=np.ones(6))
    once = onnxfold.optimize(model, defer="all")
    assert {norm.output for norm in once.plan.deferred} == {"n", "r"}
    assert error(model, once.model) < BOUND
    assert not onnxfold.optimize(once.model, defer="all").changed


@pytest.mark.parametrize("epsilon", [1e-12, 1e-2])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 1e4])
def test_every_epsilon_and_size_of_rows_is_exact(epsilon: float, size: float) -> None:
    """The paper's deferral holds up to epsilon; a row epsilon makes it exact."""
    model = attention(epsilon=epsilon, second=epsilon)
    found = defer(model)
    x = np.random.default_rng(0).standard_normal((2, 3, 6)) * size
    x[0, 0] = 0  # a row of zeros
    first, second = (
        run(m, {"x": x}, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
    )
    largest = np.abs(first).max()
    # If the root is only of epsilon, roundings are relative to it: a few of 2^-53.
    assert np.abs(first - second).max() <= 1e-12 * largest


@pytest.mark.parametrize("opset", [9, 18])  # a Gemm must have a bias before opset 11
def test_a_layer_with_a_bias_is_taken_apart(opset: int) -> None:
    body = "f = Reshape(n, flat) h = Gemm(f, W, c) a = Relu(h) y = MatMul(a, V)"
    constants = {"W": (6, 12), "c": (12,), "V": (12, 3)}
    flat, outputs = np.array([-1, 6]), "double[N,3] y"
    model = rms_graph(body, opset=opset, outputs=outputs, flat=flat, **constants)
    found = defer(model)
    onnx.checker.check_model(ir.to_proto(found.after), full_check=True)
    ((held,),) = (norm.held[1:] for norm in found.plan.norms)
    assert (held.value, held.biased, held.scale.rows) == ("h", True, ((0, 1), ()))
    found.assert_right()
    # With the bias multiplied as well, both the model and its proof break.
    (norm,) = found.plan.norms
    wrong = tuple(replace(each, biased=False) for each in norm.held)
    forced(model, DeferralPlan((replace(norm, held=wrong),))).assert_broken()


def test_a_folded_layer_norm_is_deferred() -> None:
    made = weights(E=(4, 6), gamma=(6,), W=(6, 3), V=(3, 2))
    body = "h = MatMul(x, E) n = LayerNormalization<axis=-1>(h, gamma) m = MatMul(n, W) y = Relu(m)"
    model = graph(body, "double[B,T,4] x", "double[B,T,3] y", made)
    result = onnxfold.optimize(model, defer="all")
    assert "left_out" not in result.report
    assert [row["action"] for row in result.report["inspect"]["norms"]] == ["deferred"]
    assert error(model, result.model) < BOUND


@pytest.mark.parametrize(
    ("name", "target"), some(product(BODIES, ("onnx", "ort", "kernels")), each=2)
)
def test_a_second_run_changes_nothing(name: str, target: str) -> None:
    model = BODIES[name][0](18)
    once = onnxfold.optimize(model, target=target, defer="all")
    assert "left_out" not in once.report
    assert once.verification is not None
    again = onnxfold.optimize(once.model, target=target, defer="all", check=0)
    assert not again.changed
