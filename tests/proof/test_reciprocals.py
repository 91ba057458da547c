"""Means as sums times 1 / n, which float32 rounds: what was before that rounding is proved."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.proof.leaf import Leaf
from onnxfold.proof.relation import EQUAL
from tests.graphs import graph, weights

_N = 12
_NORM = (
    "t = ReduceSum<keepdims=1>(h, last) m = Mul(t, part) c = Sub(h, m) s = Mul(c, c) "
    "q = ReduceSum<keepdims=1>(s, last) v = Mul(q, part) e = Add(v, eps) r = Sqrt(e) n = Div(c, r) "
    "g = Mul(n, gamma) y = Add(g, beta)"
)


def _model(first: str, part: float) -> ir.Model:
    made = {
        name: array.astype(np.float32)
        for name, array in weights(W=(5, _N), gamma=(_N,), beta=(_N,)).items()
        if f"{name})" in first + _NORM
    }
    made |= {"part": np.array(part, np.float32), "eps": np.array(1e-5, np.float32)}
    made["last"] = np.array([-1])
    width = 5 if "W" in first else _N
    return graph(f"h = {first} {_NORM}", f"float[B,4,{width}] x", f"float[B,4,{_N}] y", made)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("first", ["MatMul(x, W)", "Tanh(x)"])
def test_a_mean_with_a_rounded_factor_is_a_mean(first: str, target: str) -> None:
    result = onnxfold.optimize(_model(first, 1 / _N), target=target)
    assert "left_out" not in result.report
    (row,) = result.report["inspect"]["norms"]
    assert row["foldable"] == ("W" in first)
    kinds = {node.op_type for node in result.model.graph}
    assert "ReduceSum" not in kinds


def test_another_factor_is_not_the_mean() -> None:
    """The next number in float32, as near as recognition allows."""
    other = np.nextafter(np.float32(1 / _N), np.float32(1))
    result = onnxfold.optimize(_model("Tanh(x)", float(other)))
    assert [left["name"] for left in result.report["left_out"]] == ["lower"]


@pytest.mark.parametrize(("number", "changes"), [(np.float32(1 / _N), True), (5e-309, False)])
def test_only_a_number_with_a_finite_reciprocal_is_read_as_one(
    number: float, changes: bool
) -> None:
    leaf = Leaf(None, None, EQUAL, (), None, array=np.array(number))
    assert (leaf.with_reciprocal([_N]) is not leaf) == changes
