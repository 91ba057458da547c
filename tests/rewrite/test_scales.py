"""Scales, biases and BatchNormalization in the linear layer before them, in float64."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.analysis import analyse
from onnxfold.graph import GraphView
from onnxfold.norms import find_norms
from onnxfold.planning import Plan
from onnxfold.planning.fusion import ScaleFusion
from onnxfold.planning.scales import decide_scales
from onnxfold.prepare import prepare
from onnxfold.prove_affine import AffineProof
from onnxfold.prove_scales import prove_scales
from onnxfold.rewrite.absorb import apply_scales
from tests.affine_graphs import Array, error, graph, weights

# Weights are float64 and so is the run: a few hundred roundings of 2^-53, far below.
BOUND = 1e-12
X = "double[B,4,6] x"

MOVES = {
    "a layer scale": ("m = MatMul(x, W) a = Add(m, b) y = Mul(ls, a)", 1),
    "without a bias": ("m = MatMul(x, W) y = Mul(m, ls)", 1),
    "behind a layout": (
        "m = MatMul(x, W) a = Add(m, b) t = Transpose<perm=[0,2,1]>(a) y = Mul(t, column)",
        1,
    ),
    "heads": ("m = MatMul(x, W) a = Add(m, b) r = Reshape(a, heads) y = Mul(r, per_head)", 1),
    "a number": ("m = MatMul(x, W) a = Add(m, b) y = Div(a, eight)", 1),
    "scores": (
        "m = MatMul(x, V) a = Add(m, d) t = Transpose<perm=[0,2,1]>(x) s = MatMul(a, t) "
        "y = Div(s, eight)",
        1,
    ),
    "a root on queries and on keys": (
        "m = MatMul(x, V) a = Add(m, d) q = Mul(a, eight) n = MatMul(x, V2) key = Add(n, d) "
        "z = Shape(key) t = Transpose<perm=[0,2,1]>(key) p = Mul(t, eight) s = MatMul(q, p) "
        "v = Cast<to=11>(z) c = ReduceSum<keepdims=0>(v) y = Add(s, c)",
        2,
    ),
    "a key repeated for several heads": (
        "m = MatMul(x, V) u = Unsqueeze(m, one) e = Expand(u, copies) y = Mul(e, eight)",
        1,
    ),
    "half of the elements, turned": (
        "m = MatMul(x, V) h = Slice(m, zero, two, last) n = Neg(h) t = Tile(n, thrice) "
        "y = Mul(t, eight)",
        1,
    ),
    "biases in a row": ("m = MatMul(x, W) a = Add(m, b) y = Add(a, b2)", 1),
    "three biases and scales": (
        "m = MatMul(x, W) a = Add(m, b) c = Add(a, b2) e = Mul(c, ls) f = Sub(e, b3) "
        "y = Mul(f, eight)",
        4,
    ),
    "gemm": ("f = Flatten<axis=2>(x) g = Gemm<alpha=0.5>(f, W, b) y = Mul(g, ls)", 1),
    "gemm without a bias": ("f = Flatten<axis=2>(x) g = Gemm(f, W) y = Add(g, b)", 1),
    "conv": ("c = Conv<pads=[1,1]>(x, K, k) y = Mul(c, column)", 1),
    "conv without a bias": ("c = Conv<pads=[1,1]>(x, K) y = Add(c, column)", 1),
    "batch norm": ("c = Conv(x, K, k) y = BatchNormalization(c, s5, k, b2, s5)", 1),
    "gemm and batch norm": (
        "f = Flatten<axis=2>(x) g = Gemm(f, W, b) y = BatchNormalization(g, s5, k, b2, s5)",
        1,
    ),
    "batch norm without a bias": ("c = Conv(x, K) y = BatchNormalization(c, s5, k, b2, s5)", 1),
    "depthwise": ("c = Conv<group=4>(x, D) y = Mul(c, four)", 1),
    "the alpha of a DyT": (
        "m = MatMul(x, W) a = Add(m, b) s = Mul(a, eight) h = Tanh(s) g = Mul(h, ls) "
        "y = Add(g, b2)",
        1,
    ),
    "a weight behind a layout": (
        "T = Transpose(U) m = MatMul(x, T) a = Add(m, b) y = Mul(a, ls)",
        1,
    ),
    "a factor of 0": ("m = MatMul(x, W) a = Add(m, b) y = Mul(a, zeros)", 1),
}
SHAPES = {
    "W": (6, 5),
    "U": (5, 6),
    "V": (6, 6),
    "V2": (6, 6),
    "K": (5, 4, 2),
    "D": (4, 1, 2),
    "b": (5,),
    "b2": (5,),
    "b3": (5,),
    "d": (6,),
    "k": (5,),
    "ls": (5,),
    "column": (5, 1),
    "four": (4, 1),
}


def _model(
    body: str, outputs: str = "double[] y", more: dict[str, Array] | None = None
) -> ir.Model:
    made = weights(**SHAPES) | {
        "eight": np.array(8.3),
        "zeros": np.array([1.0, 0.0, 2.0, 0.0, -1.0]),
        "s5": np.abs(np.random.default_rng(9).standard_normal(5)) + 0.5,
        "heads": np.array([0, 0, 1, 5]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "last": np.array([-1]),
        "thrice": np.array([1, 1, 3]),
        "copies": np.array([1, 3, 1, 1]),
        "per_head": np.random.default_rng(8).standard_normal((1, 5)),
        **(more or {}),
    }
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    constants = {name: array for name, array in made.items() if name in words}
    model = graph(body, X, outputs, constants)
    for value in model.graph.outputs:
        value.shape = None
    return model


def _absorb(
    model: ir.Model, limit: int = 1 << 30
) -> tuple[ir.Model, tuple[ScaleFusion, ...], AffineProof]:
    copy = prepare(model).model
    view = GraphView(copy)
    fusions = decide_scales(view, find_norms(view), allow_split_bytes=limit)
    apply_scales(view, fusions)
    return copy, fusions, _proof(model, copy, fusions)


def _proof(model: ir.Model, copy: ir.Model, fusions: tuple[ScaleFusion, ...]) -> AffineProof:
    return prove_scales(GraphView(prepare(model).model), GraphView(copy), fusions)


@pytest.mark.parametrize("case", MOVES)
def test_scales_move_and_nothing_else_changes(case: str) -> None:
    body, count = MOVES[case]
    before = _model(body)
    after, fusions, proof = _absorb(before)
    assert len(fusions) == count
    assert len(after.graph) == len(before.graph) - count
    assert error(before, after) < BOUND
    assert proof.passed, proof.failures
    assert not _absorb(after)[1]


REFUSED = {
    "a residual reads it too": "m = MatMul(x, W) a = Mul(m, ls) y = Add(a, m)",
    "by what is computed": "m = MatMul(x, W) h = Tanh(m) n = MatMul(x, W2) y = Mul(n, h)",
    "the alpha of a DyT whose input a residual reads": (
        "m = MatMul(x, W) a = Add(m, b) s = Mul(a, eight) h = Tanh(s) g = Mul(h, ls) "
        "n = Add(g, b2) y = Add(n, a)"
    ),
    "along tokens": "m = MatMul(x, W) y = Mul(m, four)",
    "behind an activation": "m = MatMul(x, W) h = Tanh(m) y = Mul(h, ls)",
    "scores of inputs": "t = Transpose<perm=[0,2,1]>(x) s = MatMul(x, t) y = Div(s, eight)",
    "a bias alone": "m = MatMul(x, W) y = Add(m, b)",
    "number by which is divided": "m = MatMul(x, W) y = Div(ls, m)",
    "channels of a part": "m = MatMul(x, W) h = Slice(m, zero, two, last) y = Mul(h, pair)",
    "channels behind a repetition": "m = MatMul(x, V) t = Tile(m, thrice) y = Mul(t, long)",
    "a bias per token": "m = MatMul(x, W) a = Add(m, table) y = Mul(a, ls)",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_scale_of_a_weight_stays(case: str) -> None:
    rng = np.random.default_rng(2)
    more: dict[str, Array] = {
        "W2": rng.standard_normal((6, 5)),
        "table": rng.standard_normal((4, 1)),
        "pair": rng.standard_normal(2),
        "long": rng.standard_normal(18),
    }
    _, fusions, _ = _absorb(_model(REFUSED[case], more=more))
    assert not fusions


def test_a_shared_weight_is_copied_or_left() -> None:
    body = "m = MatMul(x, W) p = Mul(m, ls) n = MatMul(x, W) h = Tanh(n) y = Add(p, h)"
    before = _model(body)
    after, fusions, proof = _absorb(before)
    assert len(fusions) == 1
    assert error(before, after) < BOUND
    assert proof.passed, proof.failures
    assert not _absorb(before, limit=0)[1]


def test_a_bias_that_a_scale_forgets_fails_the_proof_behind_a_rotation_of_signs() -> None:
    before = _model("m = MatMul(x, V) a = Add(m, d) n = Neg(a) y = Mul(n, eight)")
    _, fusions, proof = _absorb(before)
    assert proof.passed
    (fusion,) = fusions
    forgetful = prepare(before).model
    apply_scales(GraphView(forgetful), (replace(fusion, scaled=fusion.scaled[:1]),))
    assert error(before, forgetful) > 1e-2
    assert not _proof(before, forgetful, fusions).passed


def test_the_scale_of_another_reader_would_change_the_function_and_fail_the_proof() -> None:
    harmless = _model("m = MatMul(x, W) a = Mul(m, ls) y = Tanh(a)")
    harmful = _model("m = MatMul(x, W) a = Mul(m, ls) t = Tanh(a) y = Add(t, m)")
    fusions = _absorb(harmless)[1]
    copy = prepare(harmful).model
    apply_scales(GraphView(copy), fusions)
    assert error(harmful, copy) > 1e-2
    assert not _proof(harmful, copy, fusions).passed


def test_a_wrong_weight_or_a_lost_bias_fails_the_proof() -> None:
    model = _model("m = MatMul(x, W) a = Add(m, b) y = Mul(a, ls)")
    after, fusions, proof = _absorb(model)
    assert proof.passed
    for name in ("W", "b"):
        value = after.graph.initializers[name]
        good, value.const_value = value.const_value, model.graph.initializers[name].const_value
        assert not _proof(model, after, fusions).passed
        value.const_value = good
    assert not _proof(model, after, ()).passed
    wrong = (replace(fusions[0], output="a"),)
    assert not _proof(model, after, wrong).passed


FUSED = "m = MatMul(x, QKV) a = Add(m, qkv) q, key, v = Split<axis=2>(a, sizes) "
KEYS = "t = Transpose<perm=[0,2,1]>(key) s = MatMul(q, t) "
OF_PARTS = {
    "q of a fused projection": (
        FUSED
        + "p = Mul(q, eight) t = Transpose<perm=[0,2,1]>(key) s = MatMul(p, t) y = MatMul(s, v)",
        1,
    ),
    "the scores of a fused projection": (FUSED + KEYS + "r = Div(s, eight) y = MatMul(r, v)", 1),
    "heads": (
        FUSED + "h = Reshape(q, heads3) o = Transpose<perm=[0,2,1,3]>(h) p = Mul(o, eight) "
        "g = Reshape(key, heads3) t = Transpose<perm=[0,2,3,1]>(g) s = MatMul(p, t) "
        "r = Softmax(s) c = Reshape(v, heads3) w = Transpose<perm=[0,2,1,3]>(c) y = MatMul(r, w)",
        1,
    ),
    "a root on q and on key": (
        FUSED + "p = Mul(q, eight) l = Mul(key, eight) t = Transpose<perm=[0,2,1]>(l) "
        "s = MatMul(p, t) y = MatMul(s, v)",
        2,
    ),
    "a factor per channel of v": (FUSED + KEYS + "w = Mul(v, d3) y = MatMul(s, w)", 1),
    "one part, then all of it before": (
        "m = MatMul(x, QKV) b0 = Mul(m, eight) q, key, v = Split<axis=2>(b0, sizes) "
        + KEYS
        + "w = Mul(v, d3) y = MatMul(s, w)",
        2,
    ),
    "a bias behind the Split": (
        "m = MatMul(x, QKV) q0, key, v = Split<axis=2>(m, sizes) q1 = Add(q0, bq) "
        "q = Mul(q1, eight) " + KEYS + "y = MatMul(s, v)",
        1,
    ),
    "a part of a part": (
        "m = MatMul(x, QKV) qk, v = Split<axis=2>(m, sizes2) q, key = Split<axis=2>(qk, halves) "
        "l = Mul(key, eight) t = Transpose<perm=[0,2,1]>(l) s = MatMul(q, t) y = MatMul(s, v)",
        1,
    ),
    "a Gemm without a bias": (
        "f = Flatten<axis=2>(x) m = Gemm(f, QKV) q, key, v = Split<axis=1>(m, sizes) "
        "t = Transpose(key) p = Mul(q, eight) s = MatMul(p, t) y = MatMul(s, v)",
        1,
    ),
}


def _fused(body: str) -> ir.Model:
    rng = np.random.default_rng(3)
    more: dict[str, Array] = {
        "QKV": rng.standard_normal((6, 14)),
        "qkv": rng.standard_normal(14),
        "bq": rng.standard_normal(4),
        "d3": rng.standard_normal(6),
        "sizes": np.array([4, 4, 6]),
        "sizes2": np.array([8, 6]),
        "halves": np.array([4, 4]),
        "heads3": np.array([0, 0, 2, -1]),
    }
    return _model(body, more=more)


@pytest.mark.parametrize("case", OF_PARTS)
def test_a_scale_of_one_part_of_a_split_moves_into_its_columns(case: str) -> None:
    body, count = OF_PARTS[case]
    before = _fused(body)
    after, fusions, proof = _absorb(before)
    assert len(fusions) == count
    assert error(before, after) < BOUND
    assert proof.passed, proof.failures
    assert not _absorb(after)[1]
    plan = Plan.from_json(json.loads(json.dumps(Plan(scales=fusions).to_json())))
    assert plan.scales == fusions


@pytest.mark.parametrize("case", OF_PARTS)
def test_a_scale_in_the_columns_of_another_part_fails_the_proof(case: str) -> None:
    before = _fused(OF_PARTS[case][0])
    _, fusions, _ = _absorb(before)
    place = next(index for index, fusion in enumerate(fusions) if fusion.part is not None)
    start, length, total = fusions[place].part or (0, 0, 0)
    moved = replace(fusions[place], part=((start + 4) % 8, length, total))
    wrong = (*fusions[:place], moved, *fusions[place + 1 :])
    copy = prepare(before).model
    apply_scales(GraphView(copy), wrong)
    assert not _proof(before, copy, wrong).passed


@pytest.mark.parametrize(
    "body",
    [
        FUSED + KEYS + "p = Mul(q, eight) r = MatMul(p, t) u = Add(r, s) y = MatMul(u, v)",
        FUSED + "w = Add(v, d3) " + KEYS + "y = MatMul(s, w)",
        FUSED
        + KEYS
        + "z = MatMul(s, v) w = Tanh(a) y0 = Mul(z, eight) h = ReduceSum(w) y = Add(y0, h)",
    ],
    ids=["the part is read elsewhere", "a shift", "the whole is read elsewhere"],
)
def test_what_is_no_scale_of_one_part_stays(body: str) -> None:
    assert not _absorb(_fused(body))[1]


def test_layer_scale_no_longer_hides_a_writer_from_the_norm_behind_it() -> None:
    body = (
        "p = MatMul(x, V) m = Tanh(p) n = MatMul(m, V2) s = Mul(n, d) r = Add(x2, s) "
        "h = LayerNormalization(r, gamma, beta) q = MatMul(h, W) y = Add(q, b)"
    )
    rng = np.random.default_rng(1)
    body = body.replace("x2", "e").replace("p = MatMul(x, V)", "e = MatMul(x, V3) p = MatMul(x, V)")
    more: dict[str, Array] = {name: rng.standard_normal((6, 6)) for name in ("V2", "V3")}
    more |= {"gamma": rng.standard_normal(6), "beta": rng.standard_normal(6)}
    model = _model(body, more=more)
    assert not analyse(prepare(model).model).plan.folds
    fused = analyse(prepare(model).model, fuse_affine=True)
    assert len(fused.plan.folds) == 1
    assert len(fused.plan.scales) == 1
    assert fused.plan.fusions[0].gamma
    assert fused.plan.fusions[0].beta
