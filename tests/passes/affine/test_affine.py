"""Gamma and beta in the weights: the same function, in float64, for every reader and layout."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error, forced, fuse

# Weights are float64 and so is the run: a few hundred roundings of 2^-53, far below.
BOUND = 1e-12

LN = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
RMS = "n = SimplifiedLayerNormalization<axis=-1>(x, gamma)"
PADDED = 'auto_pad="SAME_UPPER"'
X = "double[B,4,6] x"
AFFINE = {"gamma": (6,), "beta": (6,)}

Shapes = dict[str, tuple[int, ...]]
MOVES: dict[str, tuple[str, Shapes, int]] = {
    "matmul and a bias": (f"{LN} m = MatMul(n, W) y = Add(m, b)", {"W": (6, 5), "b": (5,)}, 1),
    "bias first": (f"{LN} m = MatMul(n, W) y = Add(b, m)", {"W": (6, 5), "b": (1, 1, 5)}, 1),
    "matmul from the left": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) m = MatMul(W, t) y = Add(m, b)",
        {"W": (5, 6), "b": (5, 1)},
        1,
    ),
    "gemm, all attributes": (
        f"{LN} f = Flatten<axis=2>(n) y = Gemm<alpha=0.5, beta=2.0, transB=1>(f, W, b)",
        {"W": (5, 6), "b": (5,)},
        1,
    ),
    "gemm without a bias": (f"{LN} f = Flatten<axis=2>(n) y = Gemm(f, W)", {"W": (6, 5)}, 1),
    "gemm from the right": (
        f"{RMS} f = Flatten<axis=2>(n) y = Gemm<transB=1>(W, f)",
        {"W": (5, 6)},
        0,
    ),
    "conv 1": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv(t, W, b)",
        {"W": (5, 6, 1), "b": (5,)},
        1,
    ),
    "conv without a bias": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<strides=[2]>(t, W)",
        {"W": (5, 6, 2)},
        1,
    ),
    "conv of windows that fill its input": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<{PADDED}, strides=[2]>(t, W)",
        {"W": (5, 6, 2)},
        1,
    ),
    "conv 1 that pads where it must": (
        f"{LN} t = Transpose<perm=[1,2,0]>(n) y = Conv<{PADDED}, strides=[3]>(t, W)",
        {"W": (5, 6, 1)},
        1,
    ),
    "grouped conv": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<group=2>(t, W, b)",
        {"W": (4, 3, 2), "b": (4,)},
        1,
    ),
    "depthwise conv with padding": (
        f"{RMS} t = Transpose<perm=[0,2,1]>(n) y = Conv<group=6, pads=[1,1]>(t, W)",
        {"W": (6, 1, 3)},
        0,
    ),
    "conv transpose": (
        f"{RMS} t = Transpose<perm=[0,2,1]>(n) y = ConvTranspose<strides=[2]>(t, W)",
        {"W": (6, 3, 3)},
        0,
    ),
    "a product taken back to its batch, then its bias": (
        f"{LN} f = Reshape(n, to_rows) m = MatMul(f, W) k = Reshape(m, to_batch) i = Identity(k) "
        "y = Add(i, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "a bias of heads": (
        f"{LN} m = MatMul(n, W) r = Reshape(m, to_heads) t = Transpose<perm=[0,2,1,3]>(r) "
        "y = Add(t, b)",
        {"W": (6, 6), "b": (2, 1, 3)},
        1,
    ),
    "gemm with a factor of no bias": (
        f"{LN} f = Reshape(n, to_rows) y = Gemm<alpha=2.0, beta=0.0>(f, W)",
        {"W": (6, 5)},
        1,
    ),
    "several readers": (
        f"{LN} q = MatMul(n, W) k = MatMul(n, V) a = Add(q, b) c = Add(k, d) y = Mul(a, c)",
        {"W": (6, 5), "V": (6, 5), "b": (5,), "d": (5,)},
        1,
    ),
    "heads": (
        f"{RMS} r = Reshape(n, to_heads) t = Transpose<perm=[0,2,1,3]>(r) y = MatMul(t, W)",
        {"W": (2, 3, 5)},
        0,
    ),
    "heads and back": (
        f"{LN} r = Reshape(n, to_heads) t = Transpose<perm=[0,1,3,2]>(r) "
        "u = Transpose<perm=[0,1,3,2]>(t) f = Reshape(u, to_tokens) m = MatMul(f, W) "
        "y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "heads in another order": (
        f"{LN} r = Reshape(n, to_heads) t = Transpose<perm=[0,1,3,2]>(r) "
        "f = Reshape(t, to_tokens) m = MatMul(f, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "slices joined again": (
        f"{LN} a, c = Split<axis=1, num_outputs=2>(n) j = Concat<axis=1>(c, a) "
        "m = MatMul(j, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "one token": (
        f"{LN} t = Gather<axis=1>(n, one) m = MatMul(t, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "one token, by a slice that names every axis": (
        f"{LN} s = Slice(n, at_token, to_token, axes3) t = Squeeze(s, axis1) m = MatMul(t, W) "
        "y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "mean of tokens": (
        f"{LN} t = ReduceMean<keepdims=0>(n, axis1) y = Gemm(t, W, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "zero padding": (
        f"{RMS} p = Pad(n, pads) y = MatMul(p, W)",
        {"W": (6, 5)},
        0,
    ),
    "a mask": (
        f"{RMS} p = Mul(n, mask) y = MatMul(p, W)",
        {"W": (6, 5), "mask": (4, 1)},
        0,
    ),
    "a gate": (
        f"{RMS} h = Sigmoid(x) p = Mul(h, n) y = MatMul(p, W)",
        {"W": (6, 5)},
        0,
    ),
    "a gate in the norm's own layer": (
        f"{RMS} v = MatMul(n, V) h = Tanh(v) p = Mul(n, h) y = MatMul(p, W)",
        {"V": (6, 6), "W": (6, 5)},
        0,
    ),
    "a gate of heads, from below": (
        f"{RMS} r = Reshape(n, to_heads) u = Reshape(x, to_heads) h = Exp(u) p = Div(r, h) "
        "f = Reshape(p, to_tokens) y = MatMul(f, W)",
        {"W": (6, 5)},
        0,
    ),
    "a weight behind a layout": (
        f"{LN} V = Transpose(W) I = Identity(V) m = MatMul(n, I) y = Add(m, b)",
        {"W": (5, 6), "b": (5,)},
        1,
    ),
    "fused matmul": (
        f"{LN} m = com.microsoft.FusedMatMul<alpha=0.5, transB=1>(n, W) y = Add(m, b)",
        {"W": (5, 6), "b": (5,)},
        1,
    ),
    "a bias in an activation": (
        f"{LN} m = MatMul(n, W) y = com.microsoft.BiasGelu(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "a bias in another activation": (
        f"{LN} m = MatMul(n, W) y = com.microsoft.FastGelu(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "attention": (
        f"{LN} y = com.microsoft.Attention<num_heads=2>(n, W, b)",
        {"W": (6, 12), "b": (12,)},
        1,
    ),
    "einsum": (
        f'{LN} m = Einsum<equation="btc,ce->bte">(n, W) y = Add(m, b)',
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "einsum into heads": (
        f'{LN} m = Einsum<equation="btc,chd->bthd">(n, W) y = Add(m, b)',
        {"W": (6, 2, 3), "b": (2, 3)},
        1,
    ),
    "einsum into heads, turned": (
        f'{LN} m = Einsum<equation="hcd,btc->bdth">(W, n) y = Add(b, m)',
        {"W": (2, 6, 3), "b": (3, 1, 2)},
        1,
    ),
    "einsum of whatever batches": (
        f'{LN} m = Einsum<equation="...c,ce->...e">(n, W) y = Add(m, b)',
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "einsum of whatever batches, from the left": (
        f'{LN} m = Einsum<equation="ec,...c->...e">(W, n) y = Add(m, b)',
        {"W": (5, 6), "b": (5,)},
        1,
    ),
    "transpose matmul": (
        f"{LN} m = com.microsoft.TransposeMatMul<transB=1>(n, W) y = Add(m, b)",
        {"W": (5, 6), "b": (5,)},
        1,
    ),
    "resize": (
        f'{LN} t = Transpose<perm=[0,2,1]>(n) r = Resize<mode="linear">(t, , twice) '
        "y = Conv(r, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
        1,
    ),
    "resize, cubic and smaller": (
        f'{LN} t = Transpose<perm=[0,2,1]>(n) r = Resize<mode="cubic", antialias=1>(t, , half) '
        "y = Conv(r, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
        1,
    ),
    "rows picked": (
        f"{LN} t = GatherND<batch_dims=1>(n, picked) m = MatMul(t, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "mean of two parts": (
        f"{LN} a, c = Split<axis=1, num_outputs=2>(n) j = Mean(a, c) m = MatMul(j, W) "
        "y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "mean of two parts in front of a conv": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) a, c = Split<axis=2, num_outputs=2>(t) "
        "j = Mean(a, c) y = Conv(j, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
        1,
    ),
    "sum of two parts": (
        f"{RMS} a, c = Split<axis=1, num_outputs=2>(n) j = Sub(a, c) y = MatMul(j, W)",
        {"W": (6, 5)},
        0,
    ),
    "one of two parts": (
        f"{LN} a, c = Split<axis=1, num_outputs=2>(n) j = Where(choice, a, c) m = MatMul(j, W) "
        "y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "cumulative sum": (f"{RMS} c = CumSum(n, tokens) y = MatMul(c, W)", {"W": (6, 5)}, 0),
    "padding with what is there": (
        f'{LN} p = Pad<mode="edge">(n, pads) m = MatMul(p, W) y = Add(m, b)',
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "average pooling": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) p = AveragePool<kernel_shape=[2], pads=[1,1]>(t) "
        "y = Conv(p, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
        1,
    ),
    "a norm in parts": (
        "mean = ReduceMean(x, axis2) c = Sub(x, mean) q = Mul(c, c) v = ReduceMean(q, axis2) "
        "e = Add(v, epsilon) s = Sqrt(e) z = Div(c, s) g = Mul(z, gamma) n = Add(g, beta) "
        "m = MatMul(n, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
    "dyt": (
        "a = Mul(x, epsilon) h = Tanh(a) g = Mul(h, gamma) n = Add(g, beta) "
        "m = MatMul(n, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
        1,
    ),
}
FIXED = {
    "to_heads": np.array([0, 0, 2, 3]),
    "to_tokens": np.array([0, 0, 6]),
    "to_rows": np.array([-1, 6]),
    "to_batch": np.array([-1, 4, 5]),
    "axis1": np.array([1]),
    "twice": np.array([1.0, 1.0, 2.0], np.float32),
    "half": np.array([1.0, 1.0, 0.5], np.float32),
    "picked": np.array([[[1], [3]], [[0], [0]]]),
    "choice": np.array([[True], [False]]),
    "tokens": np.array(1),
    "axis2": np.array([2]),
    "one": np.array(1),
    "pads": np.array([0, 1, 0, 0, 2, 0]),
    "epsilon": np.array(0.7),
}


def _model(body: str, shapes: dict[str, tuple[int, ...]], results: str = "double[] y") -> ir.Model:
    # Shape inference does not know FusedMatMul with operands of different ranks.
    body = f"<double[B,4,5] m> {body}" if "Fused" in body else body
    made = weights(**AFFINE, **shapes) | FIXED
    model = graph(body, X, results, made)
    for value in model.graph.outputs:
        value.shape = None
    return model


@pytest.mark.parametrize("case", MOVES)
def test_gamma_and_beta_move_and_nothing_else_changes(case: str) -> None:
    body, shapes, beta = MOVES[case]
    before = _model(body, shapes)
    fused = fuse(before)
    assert fused.moved == (1, beta), fused.decision.refusals
    assert error(before, fused.model) < BOUND
    assert fused.proof.passed, fused.proof.failures
    again = fuse(fused.model) if "dyt" not in case else fused
    assert again is fused or again.moved == (0, 0)


def test_a_norm_in_parts_loses_its_operators_and_keeps_its_name() -> None:
    body, shapes, _ = MOVES["a norm in parts"]
    fused = fuse(_model(body, shapes))
    nodes = list(fused.model.graph)
    assert [node.op_type for node in nodes].count("Mul") == 1  # the square
    (division,) = [node for node in nodes if node.op_type == "Div"]
    assert division.outputs[0].name == "n"
    assert not {"gamma", "beta"} & set(fused.model.graph.initializers)


def test_beta_over_gamma_stays_where_only_gamma_can_move_and_that_saves_an_operator() -> None:
    before = _model(
        "a = Mul(x, epsilon) h = Tanh(a) g = Mul(h, gamma) n = Add(g, beta) y = MatMul(n, W)",
        {"W": (6, 5)},
    )
    fused = fuse(before)
    assert fused.moved == (1, 0)
    assert error(before, fused.model) < BOUND
    assert fused.proof.passed, fused.proof.failures
    assert [node.op_type for node in fused.model.graph] == ["Mul", "Tanh", "Add", "MatMul"]


@pytest.mark.parametrize("reader", ["", "k = Tanh(z)"])
def test_a_norm_whose_inside_is_read_keeps_its_gamma(reader: str) -> None:
    body, shapes, _ = MOVES["a norm in parts"]
    before = _model(f"{body} {reader}", shapes, f"double[] y, double[] {reader[:1] or 'z'}")
    fused = fuse(before)
    assert fused.moved == (0, 0)
    assert [value.name for value in fused.model.graph.outputs] == ["y", reader[:1] or "z"]


def test_a_beta_of_zeros_needs_no_bias() -> None:
    body, shapes, _ = MOVES["a norm in parts"]
    before = _model(body.replace("m = MatMul(n, W) y = Add(m, b)", "y = MatMul(n, W)"), shapes)
    before.graph.initializers["beta"].const_value = ir.tensor(np.zeros(6))
    fused = fuse(before)
    assert fused.moved == (1, 1)
    assert error(before, fused.model) < BOUND
    assert [node.op_type for node in fused.model.graph].count("Add") == 1  # of epsilon


HARMFUL: dict[str, tuple[str, str, Shapes]] = {
    "a residual reads the norm": (
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        f"{LN} m = MatMul(n, W) a = Add(m, b) y = Add(a, n)",
        {"W": (6, 6), "b": (6,)},
    ),
    "the norm is an output": (
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        {"W": (6, 6), "b": (6,)},
    ),
    "an activation reads the norm": (
        f"{LN} m = MatMul(n, W) y = Add(m, b)",
        f"{LN} m = MatMul(n, W) a = Add(m, b) s = Tanh(n) y = Add(a, s)",
        {"W": (6, 6), "b": (6,)},
    ),
    "padding and beta": (
        f"{LN} p = Identity(n) m = MatMul(p, W) y = Add(m, b)",
        f"{LN} p = Pad(n, pads) m = MatMul(p, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
    ),
    "padding with a number and gamma": (
        f"{RMS} p = Identity(n) y = MatMul(p, W)",
        f"{RMS} p = Pad(n, pads, epsilon) y = MatMul(p, W)",
        {"W": (6, 5)},
    ),
    "a cumulative sum and beta": (
        f"{LN} p = Identity(n) m = MatMul(p, W) y = Add(m, b)",
        f"{LN} p = CumSum(n, tokens) m = MatMul(p, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
    ),
    "a sum of two parts and beta": (
        f"{LN} p = Mean(n, n) m = MatMul(p, W) y = Add(m, b)",
        f"{LN} p = Add(n, n) m = MatMul(p, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
    ),
    "an average over padding and beta": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) p = AveragePool<kernel_shape=[2], pads=[1,1]>(t) "
        "y = Conv(p, W, b)",
        f"{LN} t = Transpose<perm=[0,2,1]>(n) p = AveragePool<kernel_shape=[2], pads=[1,1], "
        "count_include_pad=1>(t) y = Conv(p, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
    ),
    "a resize that extrapolates and beta": (
        f'{LN} t = Transpose<perm=[0,2,1]>(n) r = Resize<mode="linear">(t, roi, twice) '
        "y = Conv(r, W, b)",
        f'{LN} t = Transpose<perm=[0,2,1]>(n) r = Resize<mode="linear", '
        'coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0>'
        "(t, roi, twice) y = Conv(r, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
    ),
    "a padded conv and beta": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv(t, W, b)",
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<pads=[1,1]>(t, W, b)",
        {"W": (5, 6, 3), "b": (5,)},
    ),
    "a conv that pads where it must, and beta": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<{PADDED}, strides=[2]>(t, W, b)",
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<{PADDED}, strides=[3]>(t, W, b)",
        {"W": (5, 6, 2), "b": (5,)},
    ),
    "a gate and beta": (
        f"{LN} p = Identity(n) m = MatMul(p, W) y = Add(m, b)",
        f"{LN} h = Sigmoid(x) p = Mul(n, h) m = MatMul(p, W) y = Add(m, b)",
        {"W": (6, 5), "b": (5,)},
    ),
    "a gate that the norm opens itself": (
        f"{RMS} h = Sigmoid(x) p = Mul(n, h) y = MatMul(p, W)",
        f"{RMS} h = Sigmoid(n) p = Mul(n, h) y = MatMul(p, W)",
        {"W": (6, 5)},
    ),
    "a norm below the line": (
        f"{RMS} h = Sigmoid(x) p = Div(n, h) y = MatMul(p, W)",
        f"{RMS} h = Sigmoid(x) p = Div(h, n) y = MatMul(p, W)",
        {"W": (6, 5)},
    ),
    "two gammas on one weight": (
        f"{LN} k = LayerNormalization<axis=-1>(x, gamma2, beta) a = MatMul(n, W) "
        "c = MatMul(k, V) p = Add(a, b) q = Add(c, d) r = Mul(p, q) y = Add(r, k)",
        f"{LN} k = LayerNormalization<axis=-1>(x, gamma2, beta) a = MatMul(n, W) "
        "c = MatMul(k, W) p = Add(a, b) q = Add(c, d) r = Mul(p, q) y = Add(r, k)",
        {"W": (6, 6), "V": (6, 6), "b": (6,), "d": (6,), "gamma2": (6,)},
    ),
    "a matmul on the wrong side": (
        f"{RMS} y = MatMul(n, W)",
        f"{RMS} y = MatMul(W, n)",
        {"W": (4, 4)},
    ),
    "a reversed slice": (
        f"{RMS} p = Identity(n) y = MatMul(p, W)",
        f"{RMS} p = Slice(n, last, first, axis2, minus) y = MatMul(p, W)",
        {"W": (6, 5)},
    ),
    "a bias in an activation, and another reader before it": (
        f"{LN} m = MatMul(n, W) y = com.microsoft.BiasGelu(m, b)",
        f"{LN} m = MatMul(n, W) a = com.microsoft.BiasGelu(m, b) y = Add(a, m)",
        {"W": (6, 5), "b": (5,)},
    ),
    "another branch joined": (
        f"{RMS} p = Concat<axis=1>(n, n) y = MatMul(p, W)",
        f"{RMS} p = Concat<axis=1>(n, x) y = MatMul(p, W)",
        {"W": (6, 5)},
    ),
}
FIXED |= {"roi": np.array([0, 0, -0.5, 1, 1, 1.5], np.float32)}
FIXED |= {"at_token": np.array([0, 2, 0]), "to_token": np.array([2**62, 3, 6])}
FIXED |= {"axes3": np.arange(3)}
FIXED |= {"last": np.array([-1]), "first": np.array([-1000]), "minus": np.array([-1])}


@pytest.mark.parametrize("case", HARMFUL)
def test_what_is_refused_would_change_the_function_and_fail_the_proof(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, refused, shapes = HARMFUL[case]
    if "wrong side" in case:
        monkeypatch.setitem(globals(), "X", "double[B,4,4] x")
        monkeypatch.setitem(AFFINE, "gamma", (4,))
    both = "double[] y, double[] n" if "output" in case else "double[] y"
    harmless, harmful = _model(allowed, shapes), _model(refused, shapes, both)
    fusions = fuse(harmless, limit=0).decision.fusions[:1]
    assert fusions
    decided = fuse(harmful, limit=0)
    assert fusions[0].output not in {fusion.output for fusion in decided.decision.fusions}
    wrong = forced(harmful, fusions)
    assert error(harmful, wrong.model) > 1e-2
    assert not wrong.proof.passed


def test_a_small_weight_of_two_norms_is_stored_twice() -> None:
    _, body, shapes = HARMFUL["two gammas on one weight"]
    body = body.replace("y = Add(r, k)", "y = Identity(r)")
    before = _model(body, shapes)
    fused = fuse(before)
    assert fused.moved == (2, 2)
    assert error(before, fused.model) < BOUND
    assert fused.proof.passed, fused.proof.failures


def test_a_weight_of_three_norms_is_stored_once_for_each_gamma() -> None:
    norms = (f"n{k} = SimplifiedLayerNormalization<axis=-1>(x, gamma{k}) " for k in range(3))
    body = "".join(norms) + "a = MatMul(n0, W) b = MatMul(n1, W) c = MatMul(n2, W) y = Sum(a, b, c)"
    before = _model(body, {"W": (6, 5)} | {f"gamma{k}": (6,) for k in range(3)})
    fused = fuse(before)
    assert fused.moved == (3, 0)
    assert error(before, fused.model) < BOUND
    assert fused.proof.passed, fused.proof.failures
    assert (fused.proof.scaled_weights, fused.proof.shifted_biases) == (3, 0)


def test_a_weight_as_large_as_the_limit_is_stored_twice_and_a_larger_one_is_not() -> None:
    _, body, shapes = HARMFUL["two gammas on one weight"]
    model = _model(body.replace("y = Add(r, k)", "y = Identity(r)"), shapes)
    bytes_of_W = 8 * np.prod(shapes["W"])
    assert fuse(model, limit=int(bytes_of_W)).moved == (2, 2)
    assert fuse(model, limit=int(bytes_of_W) - 1).moved != (2, 2)


def test_norms_of_one_gamma_share_a_weight_in_place() -> None:
    body = (
        f"{LN} m = MatMul(n, W) a = Add(m, b) t = Tanh(a) "
        "k = LayerNormalization<axis=-1>(t, gamma, beta) c = MatMul(k, W) y = Add(c, b)"
    )
    before = _model(body, {"W": (6, 6), "b": (6,)})
    fused = fuse(before, limit=0)
    assert fused.moved == (2, 2)
    assert error(before, fused.model) < BOUND
    assert fused.proof.passed, fused.proof.failures
    assert "W" in fused.model.graph.initializers
    assert len([v for v in fused.model.graph.initializers if v.startswith("W")]) == 1


@pytest.mark.parametrize("name", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_gamma_of_a_centring_that_ends_in_an_rms_operator_moves(name: str) -> None:
    """gamma is then an operand of the operator, not a Mul after it."""
    model = graph(
        f"u = ReduceMean(x, axes) d = Sub(x, u) n = {name}<axis=-1>(d, gamma) y = MatMul(n, W)",
        X,
        "double[B,4,5] y",
        weights(gamma=(6,), W=(6, 5)) | {"axes": np.array([-1])},
        opset=23,
    )
    fused = fuse(model)
    assert fused.moved == (1, 0)
    assert fused.proof.passed
    assert error(model, fused.model) < BOUND


def test_many_layers_with_weights_in_constant_nodes_take_gamma_and_beta() -> None:
    """Their stored weights counted as unknown values: the proof gave up."""
    layers = range(8)
    shapes: Shapes = dict(AFFINE)
    for i in layers:
        shapes |= {f"W{i}": (6, 5), f"b{i}": (5,)}
    body = " ".join(f"m{i} = MatMul(n, W{i}) y{i} = Add(m{i}, b{i})" for i in layers)
    made = weights(**shapes)
    constants = " ".join(
        f"{name} = Constant<value = double[{','.join(map(str, array.shape))}] "
        f"{{{','.join(map(repr, array.ravel().tolist()))}}}>()"
        for name, array in made.items()
    )
    outputs = ", ".join(f"double[B,4,5] y{i}" for i in layers)
    found = fuse(graph(f"{constants} {LN} {body}", X, outputs, {}))
    assert found.decision.fusions
    assert found.proof.passed


def test_gamma_and_beta_in_front_of_a_cast_at_the_end_of_a_norm_go() -> None:
    body = (
        "w = Cast<to=11>(x) m = ReduceMean<keepdims=1>(w, last) d = Sub(w, m) s = Mul(d, d) "
        "v = ReduceMean<keepdims=1>(s, last) e = Add(v, epsilon) r = Sqrt(e) q = Div(d, r) "
        "g = Mul(q, gamma) n = Add(g, beta) c = Cast<to=1>(n) k = MatMul(c, W) y = Add(k, b)"
    )
    single = {name: a.astype(np.float32) for name, a in weights(W=(6, 5), b=(5,)).items()}
    made = weights(**AFFINE) | {"epsilon": np.array(1e-5), "last": np.array([-1])} | single
    found = fuse(graph(body, "float[2,3,6] x", "float[2,3,5] y", made))
    assert found.moved == (1, 1)
    assert found.proof.passed
    ends = [node.op_type for node in found.model.graph][-4:]
    assert ends == ["Div", "Cast", "MatMul", "Add"]


@pytest.mark.parametrize("op_type", ["Reciprocal", "Exp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gamma_that_is_computed_from_constants_moves(op_type: str, dtype: type) -> None:
    """With the numbers that it has before the rounding to its type."""
    body = f"k = {op_type}(gamma) n = LayerNormalization(x, k) y = MatMul(n, W)"
    made = {name: a.astype(dtype) for name, a in weights(gamma=(6,), W=(6, 5)).items()}
    name = "float" if dtype is np.float32 else "double"
    found = fuse(graph(body, f"{name}[2,3,6] x", f"{name}[2,3,5] y", made))
    assert found.moved == (1, 0)
    assert found.proof.passed


def test_a_gamma_of_one_and_a_weight_moves() -> None:
    """LayerNorm1P of Megatron, in float32, where 1 + w is rounded."""
    body = "k = Add(gamma, one) n = LayerNormalization(x, k, beta) h = MatMul(n, W) y = Add(h, b)"
    made = weights(W=(6, 5), b=(5,), **AFFINE) | {"one": np.ones(())}
    single = {name: array.astype(np.float32) for name, array in made.items()}
    found = fuse(graph(body, "float[2,3,6] x", "float[2,3,5] y", single))
    assert found.moved == (1, 1)
    assert found.proof.passed
