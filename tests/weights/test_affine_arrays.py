"""Scaled, shifted and centered arrays, and the sums that biases take: against numpy."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.graph.channels import Channels
from onnxfold.graph.equality import same_tensor
from onnxfold.operators.families.reactions import Passes, react
from onnxfold.shapes import infer
from onnxfold.weights import evaluation
from onnxfold.weights.affine_parts import column_range, weighted_sum
from onnxfold.weights.edited import Product, centred, edited, evaluated
from onnxfold.weights.evaluation import Centre, Evaluation, Scale, Shift
from tests.graphs import Array, graph


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


@pytest.mark.parametrize("threads", [1, 3])
def test_every_chunk_comes_once_and_in_order_from_however_many_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_threads", lambda: threads)
    monkeypatch.setattr(evaluation, "_CHUNK_ELEMENTS", 20)
    W = np.arange(800.0).reshape(160, 5)
    evaluated = Evaluation(W, (Scale(Channels.along([(1, 5)]), np.full(5, 2.0)),))
    evaluated.prepare()
    parts = list(evaluated.mapped(lambda start, rows: (start, rows.copy())))
    assert [start for start, _ in parts] == list(evaluated.starts)
    assert len(parts) > 30
    assert np.array_equal(np.concatenate([rows for _, rows in parts]), 2 * W)


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
def test_weighted_sums_are_those_of_numpy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_CHUNK_ELEMENTS", 8)  # several chunks
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 6, size=int(rng.integers(2, 5))))
    inner, outer = (int(a) for a in rng.permutation(len(shape))[:2])
    W, s = rng.standard_normal(shape), rng.standard_normal(shape[inner])
    got = weighted_sum(
        evaluated(ir.Tensor(W)), shape, s, Channels.along([(inner, shape[inner])]),
        Channels.along([(outer, shape[outer])]),
    )  # fmt: skip
    letters = "abcd"[: len(shape)]
    expected = np.einsum(f"{letters},{letters[inner]}->{letters[outer]}", W, s)
    assert np.allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_weighted_sums_over_a_part_of_an_axis_are_those_of_numpy(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_CHUNK_ELEMENTS", 8)
    rng = np.random.default_rng(seed)
    groups, inside, out, taps = (int(n) for n in rng.integers(2, 5, size=4))
    W, s = rng.standard_normal((groups * inside, out, taps)), rng.standard_normal(groups * inside)
    outer = Channels((AxisBlock(0, inside, groups, 1), AxisBlock(1, 1, out, 1)))
    inner = Channels.along([(0, groups * inside)])
    got = weighted_sum(evaluated(ir.Tensor(W)), W.shape, s, inner, outer)
    parts = W.reshape(groups, inside, out, taps), s.reshape(groups, inside)
    expected = np.einsum("gcot,gc->go", *parts).reshape(-1)
    assert np.allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(30))
def test_channels_follow_random_layouts_as_the_numbers_do(seed: int) -> None:
    """A diagonal before random reshapes and transpositions is the same diagonal after them."""
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
    view = infer(model)
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


def test_whether_an_edit_changed_a_weight_shows_in_its_first_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[int] = []
    filled = Evaluation.filled

    def counted(evaluation: Evaluation, starts: range) -> Array:
        result = filled(evaluation, starts)
        rows.append(len(result))
        return result

    monkeypatch.setattr(Evaluation, "filled", counted)
    W = ir.Tensor(np.random.default_rng(5).standard_normal((2048, 256)).astype(np.float32))
    factors = np.full(256, 2.0)
    new = edited(W, Scale(Channels.along([(1, 256)]), factors), "W")
    assert not same_tensor(W, new)
    assert sum(rows) <= 256
    assert same_tensor(ir.Tensor(2 * W.numpy()), new)
    assert sum(rows[1:]) == 2048


@pytest.mark.parametrize(("maxima", "ratio"), [([2.0, 0.0, 8.0], 4.0), ([0.0, 0.0], 1.0)])
def test_columns_of_zeros_do_not_count_in_a_range(maxima: list[float], ratio: float) -> None:
    assert column_range(np.array(maxima)) == ratio
