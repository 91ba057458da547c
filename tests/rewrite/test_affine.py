"""Gamma and beta in the weights: the same function, in float64, for every reader and layout."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.affine import Channels
from onnxfold.graph import AxisBlock, Fiber
from onnxfold.rewrite.affine import weighted_sum
from onnxfold.rewrite.centre import centred
from onnxfold.rewrite.edited import Product, edited
from onnxfold.rewrite.edits import Centre, Scale, Shift
from tests.affine_graphs import Array, error, forced, fuse, graph, weights

# Weights are float64 and so is the run: a few hundred roundings of 2^-53, far below.
BOUND = 1e-12

LN = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
RMS = "n = SimplifiedLayerNormalization<axis=-1>(x, gamma)"
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
    "axis1": np.array([1]),
    "axis2": np.array([2]),
    "one": np.array(1),
    "pads": np.array([0, 1, 0, 0, 2, 0]),
    "epsilon": np.array(0.7),
}


def _model(body: str, shapes: dict[str, tuple[int, ...]], results: str = "double[] y") -> ir.Model:
    # Shape inference does not know FusedMatMul with operands of different ranks.
    body = f"<double[B,4,5] m> {body}" if "Fused" in body else body
    made = weights(**AFFINE, **shapes) | FIXED
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    constants = {name: array for name, array in made.items() if name in words}
    model = graph(body, X, results, constants)
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
    "a padded conv and beta": (
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv(t, W, b)",
        f"{LN} t = Transpose<perm=[0,2,1]>(n) y = Conv<pads=[1,1]>(t, W, b)",
        {"W": (5, 6, 3), "b": (5,)},
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


def _rows_scaled_and_columns_centred(
    dtype: np.dtype[np.generic],
) -> tuple[ir.TensorProtocol, tuple[Scale, Centre]]:
    rng = np.random.default_rng(3)
    W = ir.Tensor(rng.standard_normal((700, 300)).astype(dtype))
    scale = Scale(Channels.along([(0, 700)]), rng.standard_normal(700))
    return W, (scale, Centre(Fiber((AxisBlock(1, 1, 300, 1),))))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scaling_and_centring_give_the_same_weights_in_either_order(
    dtype: type[np.generic],
) -> None:
    W, edits = _rows_scaled_and_columns_centred(np.dtype(dtype))
    there = edited(edited(W, edits[0], "W"), edits[1], "W")
    back = edited(edited(W, edits[1], "W"), edits[0], "W")
    assert np.array_equal(there.numpy(), back.numpy())


def test_an_edited_weight_is_rounded_once() -> None:
    W, edits = _rows_scaled_and_columns_centred(np.dtype(np.float32))
    exact = W.numpy().astype(np.float64) * np.asarray(edits[0].vector)[:, None]
    exact = exact - exact.mean(axis=1, keepdims=True)
    once = edited(edited(W, edits[0], "W"), edits[1], "W").numpy()
    assert np.array_equal(once, exact.astype(np.float32))
    scaled_first = edited(W, edits[0], "W").numpy()
    twice = centred(scaled_first, Fiber((AxisBlock(1, 1, 300, 1),)))
    assert not np.array_equal(once, twice)


def test_centring_along_rows_takes_its_means_from_the_scaled_weight() -> None:
    rng = np.random.default_rng(4)
    W = rng.standard_normal((900, 400)).astype(np.float32)
    g = rng.standard_normal(400)
    scaled = edited(ir.Tensor(W), Scale(Channels.along([(1, 400)]), g), "W")
    result = edited(scaled, Centre(Fiber((AxisBlock(0, 1, 900, 1),))), "W").numpy()
    exact = W.astype(np.float64) * g
    exact = exact - exact.mean(axis=0)
    # One rounding of the result; the sums differ by far less in float64.
    assert np.all(np.abs(result - exact) <= 2.0**-24 * np.abs(exact) * (1 + 1e-6) + 1e-15)


def test_a_bias_takes_the_product_with_the_weight_before_its_own_scaling() -> None:
    rng = np.random.default_rng(5)
    W, b = rng.standard_normal((6, 5)), rng.standard_normal(5)
    beta, ls = rng.standard_normal(6), rng.standard_normal(5)
    columns = Channels.along([(1, 5)])
    scaled = edited(ir.Tensor(W), Scale(columns, ls), "W")
    product = Product(scaled, beta, Channels.along([(0, 6)]), columns, 0.5)
    bias = edited(ir.Tensor(b), Scale(Channels.along([(0, 5)]), ls), "b")
    shifted = edited(bias, Shift(Channels.along([(0, 5)]), product), "b").numpy()
    assert np.allclose(shifted, ls * b + 0.5 * beta @ (W * ls), rtol=0, atol=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_weighted_sums_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 6, size=int(rng.integers(2, 5))))
    inner, outer = (int(a) for a in rng.permutation(len(shape))[:2])
    W, s = rng.standard_normal(shape), rng.standard_normal(shape[inner])

    def mapped(function: Callable[[int, Array], Any], /) -> Iterator[Any]:
        return (function(start, W[start : start + 2]) for start in range(0, shape[0], 2))

    got = weighted_sum(
        mapped, shape, s, Channels.along([(inner, shape[inner])]),
        Channels.along([(outer, shape[outer])]),
    )  # fmt: skip
    letters = "abcd"[: len(shape)]
    expected = np.einsum(f"{letters},{letters[inner]}->{letters[outer]}", W, s)
    assert np.allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(30))
def test_channels_follow_random_layouts_as_the_numbers_do(seed: int) -> None:
    """A diagonal before random reshapes and transpositions is the same diagonal behind them."""
    rng = np.random.default_rng(seed)
    size = 24
    text, shape = "n0 = Identity(x)", [2, 4, size]
    constants: dict[str, Array] = {}
    shapes: dict[str, list[int]] = {}
    for step in range(4):
        if rng.random() < 0.5:
            perm = [int(a) for a in rng.permutation(len(shape))]
            shape = [shape[a] for a in perm]
            text += f" n{step + 1} = Transpose<perm={perm}>(n{step})"
            continue
        flat, parts = int(np.prod(shape)), []
        for factor in (2, 3, 4):
            if flat % factor == 0:
                parts.append(factor)
                flat //= factor
        shape = [int(a) for a in rng.permutation([*parts, flat])]
        constants[f"s{step}"] = np.array(shape)
        shapes[f"n{step + 1}"] = shape
        text += f" n{step + 1} = Reshape(n{step}, s{step})"
    model = graph(text + " y = Neg(n4)", "double[2,4,24] x", "double[] y", constants)
    from onnxfold.affine.laws import Passes, react
    from onnxfold.graph import GraphView

    view = GraphView(model)
    vector = rng.standard_normal(size)
    channels = Channels.along([(2, size)])
    expected = np.broadcast_to(vector, (2, 4, size))
    for node in list(model.graph)[:-1]:
        reaction = react(view, node, 0, channels)
        if not isinstance(reaction, Passes):
            return  # refused rather than guessed
        channels = reaction.outputs[0][1]
        if node.op_type == "Transpose":
            expected = np.transpose(expected, node.attributes.get_ints("perm"))
        elif node.op_type == "Reshape":
            expected = expected.reshape(shapes[node.outputs[0].name or ""])
        spread = np.broadcast_to(channels.spread(vector, expected.shape), expected.shape)
        assert np.array_equal(spread, expected)


@pytest.mark.parametrize("name", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_gamma_of_a_centring_that_ends_in_an_rms_operator_moves(name: str) -> None:
    """gamma is then an operand of the operator, not a Mul behind it."""
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


@pytest.mark.parametrize("axis", [0, 1])
def test_edits_need_a_few_mebibytes_beyond_the_result(axis: int) -> None:
    shape = (2048, 4096)
    W = ir.Tensor(np.ones(shape, np.float32))
    scaled = edited(
        W, Scale(Channels.along([(1 - axis, shape[1 - axis])]), np.ones(shape[1 - axis])), "W"
    )
    both = edited(scaled, Centre(Fiber((AxisBlock(axis, 1, shape[axis], 1),))), "W")
    tracemalloc.start()
    try:
        result = both.numpy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= result.nbytes + (6 << 20)
