"""Factors in a row become one; factors with other readers or shapes stay separate."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfold.passes.prepare.working_copy import prepare
from tests.builders import model_of

X = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)


def _model(extra: list[onnx.NodeProto], outputs: tuple[str, ...], factor: Any) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["g", "x"], ["a"]),
        helper.make_node("Mul", ["a", "k"], ["y"]),
        *extra,
    ]
    gamma = np.array([1.5, -2.0, 0.25, 3.0], np.float32)
    kind = (TensorProto.FLOAT, ["batch", 4])
    weights = {"g": gamma, "k": np.asarray(factor)}
    return model_of(nodes, {"x": kind}, dict.fromkeys(outputs, kind), weights)


def _products(model: ir.Model) -> int:
    return sum(node.op_type == "Mul" for node in model.graph)


@pytest.mark.parametrize("factor", [np.float32(0.25), np.arange(1, 5, dtype=np.float32)])
def test_two_constant_factors_become_one_product(factor: Any) -> None:
    proto = _model([], ("y",), factor)
    merged = prepare(ir.from_proto(proto)).model
    assert _products(merged) == 1
    assert set(merged.graph.initializers) == {"y.factor"}
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": X})
    (found,) = ReferenceEvaluator(ir.to_proto(merged)).run(None, {"x": X})
    # Two roundings against two others: of g k and of its product with x.
    np.testing.assert_allclose(found, expected, rtol=3 * 2.0**-24, atol=0)


@pytest.mark.parametrize("read", [("y",), ("y", "a")])
def test_a_sign_goes_into_the_factor_behind_it_where_nothing_else_reads_it(
    read: tuple[str, ...],
) -> None:
    proto = _model([], read, np.float32(0.25))
    proto.graph.node[0].CopyFrom(helper.make_node("Neg", ["x"], ["a"]))
    del proto.graph.initializer[0]
    merged = prepare(ir.from_proto(proto)).model
    assert ("Neg" in {node.op_type for node in merged.graph}) == ("a" in read)
    found = ReferenceEvaluator(ir.to_proto(merged)).run(None, {"x": X})
    np.testing.assert_array_equal(found[0], np.float32(-0.25) * X)


@pytest.mark.parametrize("factors", [(1e30, 1e30), (1e-30, 1e-15)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_factors_whose_product_is_no_normal_number_stay(
    factors: tuple[float, float], dtype: type[np.floating[Any]]
) -> None:
    """1e-20 * 1e30 * 1e30 is a number of float32, and 1e60 is none."""
    proto = _model([], ("y",), np.asarray(factors[0], dtype))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.asarray(factors[1], dtype), "g"))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert _products(prepare(ir.from_proto(proto)).model) == (2 if dtype is np.float32 else 1)


def test_factors_of_zero_become_one() -> None:
    assert _products(prepare(ir.from_proto(_model([], ("y",), np.float32(0)))).model) == 1


def test_a_product_that_something_else_reads_stays() -> None:
    shown = [helper.make_node("Identity", ["a"], ["z"])]
    assert _products(prepare(ir.from_proto(_model(shown, ("y", "z"), np.float32(2)))).model) == 2


def test_a_product_that_is_an_output_stays() -> None:
    assert _products(prepare(ir.from_proto(_model([], ("y", "a"), np.float32(2)))).model) == 2


def test_a_merged_factor_that_is_an_output_of_the_model_is_kept() -> None:
    proto = _model([], ("y",), np.float32(2))
    proto.graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [4]))
    merged = prepare(ir.from_proto(proto)).model
    found = ReferenceEvaluator(ir.to_proto(merged)).run(["g"], {"x": X})
    assert np.array_equal(found[0], np.array([1.5, -2.0, 0.25, 3.0], np.float32))
