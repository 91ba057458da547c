"""BatchNormalizations before linear layers move into these, and a norm before them follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph.edit import Editor
from onnxfold.options import FuseAffine
from onnxfold.passes.affine.batch_norms import apply, decide
from onnxfold.passes.affine.plan import AffineFusion, AffinePlan
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.proof import Proof
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import BOUND, error, proof_of

_NORM = "BatchNormalization<epsilon=0.01>"
_BN = f"r = Relu(x) n = {_NORM}(r, s, b, m, v) "
_OF_ROWS = "n6 = Relu(r6) "
_SHAPES = {
    "s": (6,), "b": (6,), "m": (6,), "W": (6, 5), "W2": (6, 5), "K": (5, 6, 1), "K3": (5, 6, 3),
    "D": (6, 1, 1), "T": (6, 5, 1), "c": (5,), "c6": (6,), "c10": (10,), "R": (1, 3, 6),
    "H": (1, 3, 3), "q": (1, 6), "S": (6, 6),
}  # fmt: skip
# Of x: [B, 6] or, where a convolution reads it, [B, 6, 4].
MOVES = {
    "a layer of rows": _BN + "y = Gemm(n, W, c)",
    "without a bias": _BN + "y = Gemm(n, W)",
    "factors of a layer": _BN + "y = Gemm<alpha=0.5, beta=-2.0>(n, W, c)",
    "a product and an addition": _BN + "p = MatMul(n, W) y = Add(p, c)",
    "two layers": _BN + "p = Gemm(n, W, c) q2 = Gemm(n, W2) y = Add(p, q2)",
    "one weight of two layers": _BN + "p = Gemm(n, W, c) h = Tanh(x) z = Gemm(h, W, c) "
    "y = Add(p, z)",
    "a convolution": _BN + "y = Conv(n, K, c)",
    "a convolution without a bias": _BN + "y = Conv(n, K)",
    "a wide convolution": _BN + "y = Conv(n, K3, c)",
    "channels by themselves": _BN + "y = Conv<group=6>(n, D, c6)",
    "one position of a transposed convolution": _BN + "y = ConvTranspose<group=2>(n, T, c10)",
    "after a layout": _BN + "t = Transpose<perm=[0, 2, 1]>(n) p = MatMul(t, W) y = Add(p, c)",
    "a recurrent layer": _BN + "t = Transpose<perm=[2, 0, 1]>(n) "
    "y = RNN<hidden_size=3>(t, R, H, q)",
    "what is normalized is read as well": _BN + "p = Gemm(n, W, c) z = Gemm(r, W2) y = Add(p, z)",
    "an input": f"n = {_NORM}(x, s, b, m, v) y = Gemm(n, W, c)",
    "an input that is read as well": f"n = {_NORM}(x, s, b, m, v) p = Gemm(n, W, c) "
    "z = Gemm(x, W2) y = Add(p, z)",
    "one of two": _BN + f"k = Sigmoid(n) n2 = {_NORM}(k, s, b, m, v) p = Gemm(n2, W, c) y = Exp(p)",
}
REFUSED = {
    "a padded convolution": _BN + "y = Conv<pads=[1, 1]>(n, K3, c)",
    "an activation reads it too": _BN + "p = Gemm(n, W, c) t = Tanh(n) z = Gemm(t, W, c) "
    "y = Add(p, z)",
    "a product without a bias, as wide": _BN + "y = MatMul(n, S)",
    "two products without a bias": _BN + "p = MatMul(n, W) q2 = MatMul(n, W2) y = Add(p, q2)",
    "borders of a transposed convolution": _BN + "y = ConvTranspose<strides=[2]>(n, T, c)",
    "in training": f"r = Relu(x) n = {_NORM[:-1]}, training_mode=1>(r, s, b, m, v) "
    "y = Gemm(n, W, c)",
    "factors that are computed": f"r = Relu(x) k = ReduceMean<keepdims=0>(x, zero) "
    f"n = {_NORM}(r, k, b, m, v) y = Gemm(n, W, c)",
}


def _model(body: str, zero: bool = False) -> ir.Model:
    made = weights(**_SHAPES) | {"v": np.random.default_rng(7).random(6), "zero": np.array([0])}
    if zero:
        made["s"] = made["s"] * (np.arange(6) % 2)
    spatial = any(word in body for word in ("Conv", "perm"))
    x = "double[B,6,4] x" if spatial else "double[B,6] x"
    model = graph(body, x, "double[] y", made)
    for value in model.graph.outputs:
        value.shape = None
    return model


@dataclass(frozen=True)
class _Moved:
    model: ir.Model
    fusions: tuple[AffineFusion, ...]
    proof: Proof


def _moved(model: ir.Model, fusions: tuple[AffineFusion, ...] | None = None) -> _Moved:
    """Carry out what is decided, or other fusions; ``model`` is not changed."""
    view = prepare(model).info
    chosen = decide(view, Settings()).fusions if fusions is None else fusions
    apply(Editor(view), AffinePlan(chosen), Settings())
    proof = proof_of(model, view.model, chosen)
    return _Moved(view.model, chosen, proof)


@pytest.mark.parametrize("zero", [False, True], ids=["", "factors of 0"])
@pytest.mark.parametrize("case", MOVES)
def test_it_moves_and_nothing_else_changes(case: str, zero: bool) -> None:
    model = _model(MOVES[case], zero)
    done = _moved(model)
    assert len(done.fusions) == 1
    assert len(done.model.graph) == len(model.graph) - 1
    assert error(model, done.model) < BOUND
    assert done.proof.passed, done.proof.failures
    assert not _moved(done.model).fusions


@pytest.mark.parametrize("case", ["y = MatMul(n, W)", "p = MatMul(n, W) y = Sigmoid(p)"])
def test_an_addition_after_a_product_takes_its_place_where_it_is_smaller(case: str) -> None:
    model = _model(_BN + case)
    done = _moved(model)
    assert len(done.fusions) == 1
    names = [node.op_type for node in done.model.graph]
    assert names[:3] == ["Relu", "MatMul", "Add"]
    assert names[3:] == (["Sigmoid"] if "Sigmoid" in case else [])
    assert error(model, done.model) < BOUND
    assert done.proof.passed, done.proof.failures
    assert not _moved(done.model).fusions


def test_it_takes_the_place_of_an_addition_as_wide_where_that_is_asked_for() -> None:
    view = prepare(_model(REFUSED["a product without a bias, as wide"])).info
    assert len(decide(view, Settings(fuse_affine=FuseAffine.ALWAYS)).fusions) == 1


@pytest.mark.parametrize("case", REFUSED)
def test_it_stays_where_no_layer_could_take_it(case: str) -> None:
    assert not _moved(_model(REFUSED[case])).fusions


@pytest.mark.parametrize("case", ["a padded convolution", "an activation reads it too"])
def test_where_it_is_forced_outputs_differ_and_the_proof_fails(case: str) -> None:
    like = {"a padded convolution": "a wide convolution"}.get(case, "a layer of rows")
    fusions = _moved(_model(MOVES[like])).fusions
    model = _model(REFUSED[case])
    wrong = _moved(model, fusions)
    assert error(model, wrong.model) > 1e-2
    assert not wrong.proof.passed


def test_a_shift_that_is_forgotten_fails_the_proof() -> None:
    model = _model(MOVES["a layer of rows"])
    (fusion,) = _moved(model).fusions
    forgetful = replace(fusion, readers=tuple(r.without_beta() for r in fusion.readers))
    wrong = _moved(model, (forgetful,))
    assert error(model, wrong.model) > 1e-2
    assert not wrong.proof.passed


def test_one_that_is_unproved_stays() -> None:
    view = prepare(_model(MOVES["two layers"])).info
    (fusion,) = decide(view, Settings()).fusions
    assert decide(view, Settings(unproved={fusion.output: "a reason"})).empty


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_gamma_of_a_norm_before_it_follows(target: str) -> None:
    made = weights(gamma=(6,), s=(6,), b=(6,), m=(6,), W=(6, 5), c=(5,))
    made = {name: array.astype(np.float32) for name, array in made.items()}
    made["v"] = np.float32([1, 2, 3, 0.5, 0.25, 4])
    body = f"h = com.microsoft.SimplifiedLayerNormalization(x, gamma) n = {_NORM}(h, s, b, m, v) "
    model = ir.to_proto(graph(body + "y = Gemm(n, W, c)", "float[B,6] x", "float[B,5] y", made))
    once = onnxfold.optimize(model, target=target, fuse_affine="always")
    assert "BatchNormalization" not in [node.op_type for node in once.model.graph.node]
    summary = once.report["inspect"]["summary"]
    assert (summary["scales_fused"], summary["gamma_fused"]) == (1, 1)
    assert not onnxfold.optimize(once.model, target=target, fuse_affine="always").changed
    kept = onnxfold.optimize(model, target=target, fuse_affine="never", fold="always")
    assert "BatchNormalization" in [node.op_type for node in kept.model.graph.node]


@pytest.mark.parametrize("number", [2, 3])
def test_a_chain_moves_from_its_end(number: int) -> None:
    """Each is before the layer once the one after it has moved; a second run finds nothing."""
    names = [f"n{each}" for each in range(number)]
    chain = " ".join(
        f"{after} = {_NORM}({before}, s, b, m, v)"
        for before, after in zip(["r", *names], names, strict=False)
    )
    model = ir.to_proto(_model(f"r = Relu(x) {chain} y = Gemm({names[-1]}, W, c)"))
    once = onnxfold.optimize(model)
    assert [node.op_type for node in once.model.graph.node] == ["Relu", "Gemm"]
    assert error(ir.from_proto(model), ir.from_proto(once.model)) < BOUND
    assert not onnxfold.optimize(once.model).changed
