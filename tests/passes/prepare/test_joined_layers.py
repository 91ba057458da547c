"""Layers of one input joined along what a norm normalizes become one, whose weight is centered."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.target import Target
from tests.graphs import Array, graph, weights
from tests.soundness.folding import evaluate, fold, relative_error

BOUND = 1e-12  # float64 throughout
_N = "n = LayerNormalization<axis=-1>(h, g, b) "
_SHAPES = {
    "W": (6, 4), "V": (6, 3), "U": (6, 7), "c": (4,), "e": (3,), "g": (7,), "b": (7,), "F": (7, 5),
    "K": (4, 6, 3), "L": (3, 6, 3), "L1": (3, 6, 1), "D": (4, 2, 3), "E": (3, 2, 3),
}  # fmt: skip
_JOINED = "h = Concat<axis=-1>(p, q) "
_CHANNELS = "j = Concat<axis=1>(p, q) h = Transpose<perm=[0, 2, 1]>(j) "
FOLDS = {
    "products": "p = MatMul(x, W) q = MatMul(x, V) " + _JOINED,
    "one with a bias": "p = Gemm(x, W, c) q = Gemm(x, V) " + _JOINED,
    "both with a bias": "p = Gemm<alpha=0.5>(x, W, c) q = Gemm<alpha=0.5>(x, V, e) " + _JOINED,
    "additions of biases": "s = MatMul(x, W) p = Add(s, c) t = MatMul(x, V) q = Add(e, t) "
    + _JOINED,
    "the first has a bias": "s = MatMul(x, W) p = Add(s, c) q = MatMul(x, V) " + _JOINED,
    "the last has a bias": "p = MatMul(x, W) t = MatMul(x, V) q = Add(t, e) " + _JOINED,
    "convolutions": "p = Conv<pads=[1, 1]>(x, K, c) q = Conv<pads=[1, 1]>(x, L, e) " + _CHANNELS,
    "a residual behind it": "p = MatMul(x, W) q = MatMul(x, V) j = Concat<axis=-1>(p, q) "
    "r = MatMul(x, U) h = Add(j, r) ",
}
STAYS = {
    "different inputs": "z = Tanh(x) p = MatMul(x, W) q = MatMul(z, V) " + _JOINED,
    "an activation": "s = MatMul(x, W) p = Relu(s) q = MatMul(x, V) " + _JOINED,
    "other factors": "p = Gemm<alpha=0.5>(x, W, c) q = Gemm(x, V, e) " + _JOINED,
    "windows of two sizes": "p = Conv<pads=[1, 1]>(x, K, c) q = Conv(x, L1, e) " + _CHANNELS,
    "a piece is read as well": "p = MatMul(x, W) q = MatMul(x, V) o = Tanh(q) " + _JOINED,
}
_SHARED = "p = MatMul(x, W) q = MatMul(x, V) o = Tanh(V) " + _JOINED


def _model(body: str, dtype: str = "double") -> onnx.ModelProto:
    kind = {"double": np.float64, "float": np.float32}[dtype]
    made = {name: array.astype(kind) for name, array in weights(**_SHAPES).items()}
    x = f"{dtype}[3,6,4] x" if "Conv" in body else f"{dtype}[3,6] x"
    outputs = f"{dtype} y" + (f", {dtype} o" if "o =" in body else "")
    model = graph(body + _N + "y = MatMul(n, F)", x, outputs, made, opset=17)
    return ir.to_proto(model)


def _feeds(model: onnx.ModelProto) -> dict[str, Array]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape)
    x[0], x[1] = 3.0, x[1] + 1e3
    return {"x": x}


@pytest.mark.parametrize("case", FOLDS)
def test_the_norm_folds_over_one_layer(case: str) -> None:
    model = _model(FOLDS[case])
    folded = fold(model, Target.ONNX, fuse_affine=True)
    assert len(folded.plan.folds) == 1
    assert folded.proof.passed
    count = Counter(node.op_type for node in folded.model.graph.node)
    assert "Concat" not in count
    feeds = _feeds(model)
    assert relative_error(evaluate(model, feeds), evaluate(folded.model, feeds)) < BOUND


@pytest.mark.parametrize("case", STAYS)
def test_what_is_no_layer_of_one_input_stays_apart(case: str) -> None:
    folded = fold(_model(STAYS[case]), Target.ONNX, fuse_affine=True)
    assert not folded.plan.folds
    assert folded.findings.refusals["n"].code == "concat_along_fiber"
    assert "Concat" in [node.op_type for node in folded.model.graph.node]


def test_a_weight_with_other_readers_is_copied_where_that_is_allowed() -> None:
    model, folds = _model(_SHARED), []
    for allowed in (6 * 3 * 8, 6 * 3 * 8 - 1):
        made = onnxfold.optimize(model, target="kernels", allow_split=allowed)
        folds.append(len(made.plan.folds))
    assert folds == [1, 0]


def test_no_weights_of_two_inputs_have_the_mean_of_both() -> None:
    """Each piece without its own mean, or each weight without a share of both, is not P h."""
    made, rng = weights(**_SHAPES), np.random.default_rng(1)
    x, z = rng.standard_normal((2, 50, 6))
    W, V = made["W"], made["V"]
    h = np.concatenate([x @ W, z @ V], axis=1)
    centred = h - h.mean(1, keepdims=True)
    shared = (W.sum(1, keepdims=True) + V.sum(1, keepdims=True)) / 7
    own = [w - w.mean(1, keepdims=True) for w in (W, V)]
    for w, v in (own, (W - shared, V - shared)):
        moved = np.concatenate([x @ w, z @ v], axis=1)
        assert np.abs(moved - centred).max() > 0.1
    same = np.concatenate([x @ (W - shared), x @ (V - shared)], axis=1)
    assert np.abs(same.mean(1)).max() < BOUND


def test_layers_that_no_norm_reads_stay_as_they_are() -> None:
    made = weights(**_SHAPES)
    body = FOLDS["products"] + "r = Relu(h) n = LayerNormalization<axis=-1>(r, g, b) "
    model = ir.to_proto(graph(body + "y = MatMul(n, F)", "double[3,6] x", "double y", made))
    folded = fold(model, Target.KERNELS, fuse_affine=True)
    assert [node.op_type for node in folded.model.graph.node].count("MatMul") == 3


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_second_run_changes_nothing(target: str) -> None:
    once = onnxfold.optimize(_model(FOLDS["additions of biases"], "float"), target=target,
                             fold="always")  # fmt: skip
    assert len(once.plan.folds) == 1
    assert not onnxfold.optimize(once.model, target=target, fold="always").changed


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_second_run_finds_no_weight_that_the_first_one_shared(target: str) -> None:
    """The other layer gets a weight of its own when its norm folds."""
    body = FOLDS["products"] + "r = Tanh(x) s = MatMul(r, W) o = LayerNormalization(s, c) "
    once = onnxfold.optimize(_model(body, "float"), target=target, fold="always")
    assert len(once.plan.folds) == 2
    assert not onnxfold.optimize(once.model, target=target, fold="always").changed
