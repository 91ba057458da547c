"""Norms with Mul for a square, which ONNX Runtime's transformers optimizer must not trip over.

Its SimplifiedLayerNormalization fusion raises TypeError for such a square under a quotient.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.optimized import optimized
from tests.pairs import pairs
from tests.passes.affine.affine_graphs import error

_NORM = "n = LayerNormalization<axis=-1, epsilon=1e-3>(h, gamma, beta) "
_SPELLED = (
    "m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) c = Pow(d, two) v = ReduceMean<axes=[-1]>(c) "
    "e = Add(v, eps) r = Sqrt(e) q = Div(d, r) g = Mul(q, gamma) n = Add(g, beta) "
)
_TWO_NORMS = (
    "n = LayerNormalization<axis=-1>(h, gamma) z = MatMul(n, W) "
    "u = LayerNormalization<axis=-1>(z, gamma)"
)
BITS_OF_DOUBLE = 42  # both run in float64: some 50 roundings of numbers near 10
BITS_OF_FLOAT = 14
_WAYS: dict[str, dict[str, Any]] = {
    "onnx": {},
    "kernels": {"target": "kernels"},
    "deferred": {"defer": "all"},
}


def _made(norm: str, behind: str, dtype: str, opset: int) -> ir.Model:
    made = weights(W=(6, 6), gamma=(6,), beta=(6,)) | {"eps": np.array(1e-5), "two": np.array(2.0)}
    text = f"h = MatMul(x, W) {norm} {behind}"
    if dtype == "float":
        made = {name: array.astype(np.float32) for name, array in made.items()}
    if opset >= 18:
        text = re.sub(r"ReduceMean<axes=\[-1\]>\((\w)\)", r"ReduceMean(\1, last)", text)
        made["last"] = np.array([-1])
    return graph(text, f"{dtype}[B,4,6] x", f"{dtype}[B,4,6] y", made, opset=opset)


def _after_optimizer(model: ir.Model) -> ir.Model:
    return ir.from_proto(optimized(ir.to_proto(model), "bert", 0))


@pairs(
    norm=[_NORM, _SPELLED],
    behind=["y = Relu(n)", "y = MatMul(n, W)", "y = Mul(n, gamma)"],
    way=_WAYS,
    opset=[17, 18],
)
def test_the_optimizer_takes_norms_in_double(norm: str, behind: str, way: str, opset: int) -> None:
    model = _made(norm, behind, "double", opset)
    result = onnxfold.optimize(model, check=0, **_WAYS[way])
    assert len(result.plan.folds) == 1
    assert error(model, _after_optimizer(result.model)) < 2.0**-BITS_OF_DOUBLE


@pytest.mark.parametrize("form", ["rms", "crms", "layer"])
def test_the_optimizer_takes_conversions_in_double(form: str) -> None:
    model = _made(_NORM, "y = MatMul(n, W)", "double", 17)
    converted = onnxfold.convert(model, to=form, check=0).model
    assert error(model, _after_optimizer(converted)) < 2.0**-BITS_OF_DOUBLE


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_the_optimizer_takes_a_norm_behind_a_deferred_one(target: str, dtype: str) -> None:
    model = _made(_TWO_NORMS, "y = Mul(u, gamma)", dtype, 17)
    result = onnxfold.optimize(model, target=target, defer="all", check=0)
    assert result.report["inspect"]["summary"]["deferred"] == 1
    bits = BITS_OF_DOUBLE if dtype == "double" else BITS_OF_FLOAT
    assert error(model, _after_optimizer(result.model)) < 2.0**-bits


@pytest.mark.torch
@pytest.mark.parametrize("level", [0, 1])
def test_the_optimizer_takes_deferred_and_reinstated_norms_in_memory(level: int) -> None:
    """A session of the optimizer sees no initializer that its shape inference would need."""
    model = _made(_TWO_NORMS, "y = Mul(u, gamma)", "float", 18)
    deferred = onnxfold.optimize(model, defer="all", check=0).model
    back = onnxfold.optimize(deferred, check=0)
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    for made in (deferred, back.model):
        fused = ir.from_proto(optimized(ir.to_proto(made), "bert", level))
        assert error(model, fused) < 2.0**-BITS_OF_FLOAT
    assert "SimplifiedLayerNormalization" in {node.op_type for node in fused.graph}


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "kernels"])
@pytest.mark.parametrize("level", [0, 1])
def test_the_optimizer_takes_a_gate_behind_a_deferred_norm(level: int, target: str) -> None:
    """It searches for QuickGelu in x * Sigmoid(x * a), and fails if a is not a constant."""
    gate = "z = MatMul(n, W) i = Sigmoid(z) o = Mul(z, i) u = MatMul(n, W) w = Mul(o, u) "
    norm = "n = LayerNormalization<axis=-1>(h, gamma) "
    model = _made(norm, f"{gate} y = MatMul(w, W)", "float", 17)
    result = onnxfold.optimize(model, target=target, defer="all", check=0)
    assert result.report["inspect"]["summary"]["deferred"] == 1
    fused = ir.from_proto(optimized(ir.to_proto(result.model), "bert", level))
    assert error(model, fused) < 2.0**-BITS_OF_FLOAT
