"""What a rewritten model is left with: no dead node, and sizes as well known as before."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfold
from tests.graphs import model, weights

# GroupNorm of vectors, as PyTorch exports it: nothing asks for the shape once the norm is one.
_GROUPS = {
    "one group": "s = Shape(h) r = Reshape(h, apart) i = InstanceNormalization(r, one, zero) "
    "b = Reshape(i, s) g = Mul(b, gamma) n = Add(g, beta) ",
    "one group, a computed shape": "s = Shape(h) c = Gather(s, places) r = Reshape(h, apart) "
    "i = InstanceNormalization(r, one, zero) b = Reshape(i, c) g = Mul(b, gamma) n = Add(g, beta) ",
    "two groups": "s = Shape(h) r = Reshape(h, apart2) i = InstanceNormalization(r, two_ones, "
    "two_zeros) b = Reshape(i, s) g = Mul(b, gamma) n = Add(g, beta) ",
}


def _model(body: str, inputs: str, output: str, opset: int = 17) -> onnx.ModelProto:
    made = weights(W=(8, 8), bias=(8,), gamma=(8,), beta=(8,), V=(8, 4), T=(11, 8), P=(64, 8))
    made |= {"one": np.ones(1), "zero": np.zeros(1), "two_ones": np.ones(2)}
    made |= {"two_zeros": np.zeros(2), "apart": np.array([0, 1, -1]), "V8": np.eye(8)}
    made |= {"apart2": np.array([0, 2, -1]), "places": np.array([0, 1]), "zeros": np.array([0])}
    return model(body, inputs, output, made, opset, dtype=np.float32)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("groups", _GROUPS.values(), ids=_GROUPS)
def test_no_node_is_left_that_nothing_reads(groups: str, target: str) -> None:
    body = f"p = MatMul(x, W) h = Add(p, bias) {groups} y = MatMul(n, V)"
    result = onnxfold.optimize(_model(body, "float[N, 8] x", "float[N, 4] y"), target=target)
    assert len(result.plan.folds) == 1
    graph = result.model.graph
    read = {name for node in graph.node for name in node.input} | {v.name for v in graph.output}
    assert [node.op_type for node in graph.node if read.isdisjoint(node.output)] == []
    assert {tensor.name for tensor in graph.initializer} <= read
    if "two_ones" not in groups:  # whose Reshape takes the shape back
        assert "Shape" not in {node.op_type for node in graph.node}


# Positions after a cache's: their number is the tokens', as the output declares.
_CACHE = (
    "c = Shape<start=1, end=2>(past) s = Shape<start=1, end=2>(ids) e = Add(c, s) "
    "t = Gather(T, ids) p = Slice(P, c, e, zeros) h = Add(t, p) "
    "n = LayerNormalization(h, gamma, beta) k = MatMul(n, W) j = Concat<axis=1>(past, k) "
    "u = Transpose<perm=[0,2,1]>(j) q = MatMul(n, u) w = Softmax(q) a = MatMul(w, j) "
    "o = MatMul(a, V8) r = Add(h, o) m = LayerNormalization(r, gamma, beta) y = MatMul(m, V)"
)


@pytest.mark.parametrize("check", [2, None], ids=["checked", "unchecked"])
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_sizes_that_are_known_before_are_known_after(target: str, check: int | None) -> None:
    inputs = "int64[B, S] ids, float[B, C, 8] past"
    result = onnxfold.optimize(
        _model(_CACHE, inputs, "float[B, S, 4] y"), target=target, check=check
    )
    assert len(result.plan.folds) == 2
    before, after = (result.report["before_after"][side] for side in ("before", "after"))
    assert before["unknown_norms"] == after["unknown_norms"] == 0
    assert before["unknown_products"] == after["unknown_products"]


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_no_layer_norm_is_left_with_an_empty_bias(target: str) -> None:
    """A session of ONNX Runtime 1.32 with optimizations ends the process of such a file."""
    body = (
        "h = MatMul(x, W) n = LayerNormalization(h, gamma) p = MatMul(n, W) t = Tanh(p) "
        "k = LayerNormalization(t, beta) y = MatMul(k, V)"
    )
    given = _model(body, "float[N, 8] x", "float[N, 4] y")
    for node in given.graph.node:
        node.input.extend([""] * (node.op_type == "LayerNormalization"))
    result = onnxfold.optimize(given, target=target, fuse_affine="never", check=0)
    assert len(result.plan.folds) == 1
    last = [node.input for node in result.model.graph.node if "LayerNorm" in node.op_type]
    assert last
    assert "" not in [name for names in last for name in names]
