"""Gamma and beta through a Concat or a Split of the channels: each layer takes its part of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error, forced, fuse, rightly

_N, _K = "LayerNormalization<axis=-1>(x, ga, ba)", "LayerNormalization<axis=-1>(z, gk, bk)"
_R = "com.microsoft.SimplifiedLayerNormalization"
_SHAPES = {
    "ga": (6,), "ba": (6,), "gk": (4,), "bk": (4,), "W": (10, 5), "W2": (10, 5), "V": (2, 5),
    "V2": (4, 5), "T": (16, 5), "c": (5,), "c2": (5,), "K": (5, 10, 1),
}  # fmt: skip
_SIZES: dict[str, Array] = {
    "unlike": np.array([2, 4]), "n0": np.array([0]), "n2": np.array([2]), "n6": np.array([6]),
    "heads": np.array([0, 0, 2, 5]), "whole": np.array([0, 0, 10]), "last": np.array([-1]),
    "i3": np.array(3), "back": np.array([6, 4]),
}  # fmt: skip
_CUT = "p, q = Split<axis=-1>(n, unlike) "
# Each with the number of gammas and betas that move.
MOVES = {
    "two norms": (f"n = {_N} k = {_K} h = Concat<axis=-1>(n, k) y = Gemm(h, W, c)", 2, 2),
    "without a bias": (f"n = {_N} k = {_K} h = Concat<axis=-1>(n, k) y = Gemm(h, W)", 2, 2),
    "norms without beta": (
        f"n = {_R}(x, ga) k = {_R}(z, gk) h = Concat<axis=-1>(n, k) y = MatMul(h, W)", 2, 0,
    ),
    "one norm, second": (f"n = {_N} h = Concat<axis=-1>(z, n) y = Gemm(h, W, c)", 1, 1),
    "an Add of a bias": (
        f"n = {_N} h = Concat<axis=-1>(n, z) p = MatMul(h, W) y = Add(p, c)", 1, 1,
    ),
    "a layer of channels": (
        f"n = {_N} h = Concat<axis=-1>(z, n) u = Unsqueeze(h, last) y = Conv(u, K, c)", 1, 1,
    ),
    "joined twice": (
        f"n = {_N} h = Concat<axis=-1>(n, z) h2 = Concat<axis=-1>(ba2, h) y = Gemm(h2, T, c)", 1, 1,
    ),
    "parts": (f"n = {_N} {_CUT} a = Gemm(p, V, c) b = Gemm(q, V2, c2) y = Add(a, b)", 1, 1),
    "a part and all": (
        f"n = {_N} p = Slice(n, n0, n2, last) h = Concat<axis=-1>(n, z) a = Gemm(p, V, c) "
        "b = Gemm(h, W, c2) y = Add(a, b)", 1, 1,
    ),
    "joined and cut again": (
        f"n = {_N} h = Concat<axis=-1>(n, z) a, b = Split<axis=-1>(h, back) "
        "s = Slice(a, n0, n2, last) r = Relu(b) p = Gemm(s, V, c) q = Gemm(r, V2, c2) "
        "y = Add(p, q)", 1, 1,
    ),
    "one weight, two places": (
        f"n = {_N} h = Concat<axis=-1>(n, z) h2 = Concat<axis=-1>(z, n) a = Gemm(h, W, c) "
        "b = Gemm(h2, W, c) y = Add(a, b)", 1, 1,
    ),
}  # fmt: skip
REFUSED = {
    "an activation of a part": f"n = {_N} {_CUT} r = Relu(q) a = Gemm(p, V, c) "
    "b = Gemm(r, V2, c2) y = Add(a, b)",
    "joined with itself": f"n = {_R}(x, ga) k = Tanh(n) h = Concat<axis=-1>(n, k) "
    "s = ReduceSum<keepdims=1>(h, last) y = Mul(s, c)",
    "one element": f"n = {_N} e = Gather<axis=1>(n, i3) u = Unsqueeze(e, last) y = Mul(u, c)",
    "a sum with another part": f"n = {_N} {_CUT} s = Slice(n, n2, n6, last) t = Add(q, s) "
    "r = Add(t, z) a = Gemm(p, V, c) b = Gemm(r, V2, c2) y = Add(a, b)",
}


def _model(body: str) -> ir.Model:
    made = weights(**_SHAPES, ba2=(3, 6)) | _SIZES
    inputs = "double[3,6] x" + (", double[3,4] z" if "z" in body else "")
    model = graph(body, inputs, "double[] y", made)
    for value in model.graph.outputs:
        value.shape = None
    return model


@pytest.mark.parametrize("case", MOVES)
def test_each_layer_takes_its_part(case: str) -> None:
    body, gammas, betas = MOVES[case]
    model = _model(body)
    fused = rightly(model, (gammas, betas))
    assert not fuse(fused.model).decision.fusions


@pytest.mark.parametrize("case", REFUSED)
def test_it_stays_where_a_reader_is_no_layer(case: str) -> None:
    assert not fuse(_model(REFUSED[case])).decision.fusions


@pytest.mark.parametrize("moved", [0, 1, 6])
def test_a_part_in_a_wrong_place_is_refused(moved: int) -> None:
    model = _model(MOVES["one norm, second"][0])
    (fusion,) = fuse(model).decision.fusions
    (reader,) = fusion.readers
    assert reader.start == 4
    wrong = forced(model, (replace(fusion, readers=(replace(reader, start=4 - moved),)),))
    assert wrong.proof.passed == (moved == 0)
    assert (error(model, wrong.model) > 1e-2) == (moved != 0)


def test_a_weight_too_large_for_a_copy_is_left_to_its_other_reader() -> None:
    model = _model(
        f"n = {_N} h = Concat<axis=-1>(n, z) k = Concat<axis=-1>(x, z) t = Tanh(k) "
        "a = Gemm(h, W, c) b = Gemm(t, W, c2) y = Add(a, b)"
    )
    assert fuse(model).moved == (1, 1)
    assert fuse(model, limit=0).reason == "shared_weight"


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_the_gammas_before_the_joint_projection_of_a_draft_head_move(target: str) -> None:
    """As in DeepSeek-V3's MTP and EAGLE: Linear(cat(RMSNorm(embedding), RMSNorm(hidden)))."""
    made = {name: array.astype(np.float32) for name, array in weights(**_SHAPES).items()}
    body = MOVES["norms without beta"][0]
    shapes = "float[B,6] x, float[B,4] z", "float[B,5] y"
    model = ir.to_proto(graph(body, *shapes, made))
    once = onnxfold.optimize(model, target=target, fuse_affine="always")
    assert once.report["inspect"]["summary"]["gamma_fused"] == 2
    assert not onnxfold.optimize(once.model, target=target, fuse_affine="always").changed
