"""Scales, biases and BatchNormalization in the linear layer before them, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import onnxfold
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.scales.decide import decide
from onnxfold.passes.scales.writer import channel_op
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.pipeline.proofs import prove_scales
from onnxfold.shapes import infer
from onnxfold.target import Target
from tests.case_files import Case, read
from tests.graphs import Array, graph, weights
from tests.passes.affine.affine_graphs import error
from tests.passes.scales.scale_graphs import (
    BIASED,
    absorb,
    applied,
    assert_moved,
    scale_model,
)

MOVES = read("scale_moves")
REFUSED = read("scale_refusals")


@pytest.mark.parametrize("case", MOVES.values(), ids=MOVES)
def test_scales_move_and_nothing_else_changes(case: Case) -> None:
    assert_moved(case.body, int(case.columns[0]))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_scale_of_a_weight_stays(case: str) -> None:
    rng = np.random.default_rng(2)
    more: dict[str, Array] = {
        "W2": rng.standard_normal((6, 5)),
        "table": rng.standard_normal((4, 1)),
        "long": rng.standard_normal(18),
        "heads3x4": np.array([-1, 3, 4]),
        "g46": rng.standard_normal((4, 6)),
        "i01": np.array([0, 1]),
    }
    assert not absorb(scale_model(REFUSED[case].body, more)).fusions


def test_the_scale_of_attention_scores_moves_for_our_kernels_alone() -> None:
    """Other runtimes look for it where exporters put it."""
    view = infer(
        scale_model(
            "q = MatMul(x, V) r = MatMul(x, V2) t = Transpose<perm=[0,2,1]>(r) s = MatMul(q, t) "
            "p = Div(s, eight) y = Softmax(p)"
        )
    )
    moved = {target: len(decide(view, Settings(target=target)).fusions) for target in Target}
    assert moved == {target: int(target is Target.KERNELS) for target in Target}


@pytest.mark.parametrize(("small", "warned"), [(1e-3, True), (0.1, False)])
def test_a_scale_that_widens_the_range_of_columns_is_reported(small: float, warned: bool) -> None:
    columns = {"W": np.ones((6, 5)), "ls": np.array([1.0, small, 1.0, 1.0, 1.0])}
    view = infer(scale_model(BIASED + "y = Mul(a, ls)", columns))
    warnings = decide(view, Settings(range_limit=16.0)).ranges
    assert [(found.weight, found.before) for found in warnings] == [("W", 1.0)] * warned
    assert all(found.after == pytest.approx(1 / small, rel=1e-12) for found in warnings)


def test_a_scale_before_a_layer_with_a_transposed_weight_scales_no_scores() -> None:
    """A product with a weight ends the way to Softmax, however the weight is laid out."""
    body = (
        "m = MatMul(x, V) q = Div(m, eight) v = Transpose<perm=[1,0]>(V2) r = MatMul(q, v) "
        "t = Transpose<perm=[0,2,1]>(r) s = MatMul(r, t) y = Softmax(s)"
    )
    assert len(decide(infer(scale_model(body)), Settings(target=Target.ORT)).fusions) == 1


def test_a_scale_before_a_norm_of_queries_scales_no_scores() -> None:
    """However the norm is spelled: another run sees one operator there."""
    body = (
        "m = MatMul(x, V) q = Div(m, eight) a = ReduceMean<axes=[-1]>(q) c = Sub(q, a) "
        "p = Mul(c, c) e = ReduceMean<axes=[-1]>(p) f = Add(e, eight) g = Sqrt(f) n = Div(c, g) "
        "r = MatMul(x, V2) t = Transpose<perm=[0,2,1]>(r) s = MatMul(n, t) y = Softmax(s)"
    )
    assert len(decide(infer(scale_model(body)), Settings(target=Target.ORT)).fusions) == 1


def test_scales_that_were_too_far_from_their_layer_move_in_the_same_run() -> None:
    """t + t stays, and each factor before it brings the next one nearer to the layer."""
    sums = " ".join(f"u{n} = Add(t{n}, t{n}) t{n + 1} = Mul(u{n}, half)" for n in range(60))
    body = f"t0 = MatMul(x, W) {sums} s = Tanh(t60) y = MatMul(s, W)"
    made = weights(W=(6, 6)) | {"half": np.array(0.5)}
    once = onnxfold.optimize(graph(body, "double[B,4,6] x", "double[B,4,6] y", made), check=0)
    assert len(once.plan.scales) == 60
    assert not onnxfold.optimize(once.model, check=0).changed


@pytest.mark.parametrize(
    ("body", "count"),
    [
        # As norms are written by hand: g (x - mean(x)) / std(x) + b.
        ("t = Tanh(x) r = Abs(x) c = Mul(d3, t) n = Mul(c, r) p = Mul(n, eight) y = Tanh(p)", 1),
        ("t = Tanh(x) r = Exp(x) c = Mul(d3, t) n = Div(c, r) p = Div(n, d) y = Tanh(p)", 1),
        # A divisor, a factor that is read again, one of fewer axes.
        ("t = Tanh(x) r = Exp(x) c = Mul(d3, t) n = Div(r, c) p = Mul(n, d) y = Tanh(p)", 0),
        ("t = Tanh(x) c = Mul(d3, t) n = Mul(c, t) p = Mul(n, d) y = Add(p, c)", 0),
        ("t = ReduceMean<axes=[0], keepdims=0>(x) c = Mul(d3, t) n = Mul(x, c) y = Mul(n, d)", 0),
    ],
)
def test_a_factor_within_a_product_takes_a_scale(body: str, count: int) -> None:
    assert_moved(body, count)


def test_a_batch_normalization_of_each_element_is_no_scale_of_channels() -> None:
    for attribute, known in (("", True), ("<spatial=1>", True), ("<spatial=0>", False)):
        body = f"y = BatchNormalization{attribute}(x, d, d3, mean, var)"
        more: dict[str, Array] = {"mean": np.zeros(6), "var": np.ones(6)}
        constants = {**weights(d=(6,), d3=(6,)), **more}
        model = graph(body, "double[B,6,4] x", "double[B,6,4] y", constants, opset=8)
        assert (channel_op(infer(model), model.graph[0]) is not None) == known


def test_a_batch_normalization_after_a_sum_scales_both_summands_or_stays() -> None:
    more: dict[str, Array] = {"p": np.array([0.5, 2.0, -1.5, 3.0]), "v": np.array([1, 2, 3, 0.5])}
    more["q"] = more["p"].reshape(4, 1)
    norm = "y = BatchNormalization(a, p, p, p, v)"
    assert_moved(f"t = Tanh(x) g = Mul(t, four) a = Add(g, q) {norm}", 1, more)
    alone = scale_model(f"t = Tanh(x) a = Add(t, q) {norm}", more)
    assert not absorb(alone).fusions


def test_a_shared_weight_is_copied_or_left() -> None:
    body = "m = MatMul(x, W) p = Mul(m, ls) n = MatMul(x, W) h = Tanh(n) y = Add(p, h)"
    assert_moved(body, 1)
    assert not absorb(scale_model(body), limit=0).fusions


@pytest.mark.parametrize(
    "body",
    [
        "n = LayerNormalization(x, d, d3) y = Mul(n, eight)",
        "m = MatMul(x, V) a = Add(m, d) n = Neg(a) y = Mul(n, eight)",
    ],
    ids=["a beta", "a bias before a rotation of signs"],
)
def test_what_a_scale_forgets_fails_the_proof(body: str) -> None:
    before = scale_model(body)
    done = absorb(before)
    assert done.proof.passed
    (fusion,) = done.fusions
    assert len(fusion.scaled) == 2
    forgetful = applied(before, (replace(fusion, scaled=fusion.scaled[:1]),), done.fusions)
    assert error(before, forgetful.model) > 1e-2
    assert not forgetful.proof.passed


def test_a_scale_of_rows_leaves_a_layer_whose_bias_runs_along_columns() -> None:
    rng = np.random.default_rng(0)
    square, tall = rng.normal(size=(6, 6)), rng.normal(size=(6, 4))
    body = (
        "u = ReduceMean <keepdims = 0> (x, first) v = MatMul(P, u) g = Gemm(A, v, c) y = Mul(g, k)"
    )
    column = np.arange(1.0, 7.0).reshape(6, 1)
    more = {"first": np.array([0]), "A": square, "P": tall, "c": square[0], "k": column}
    assert not absorb(scale_model(body, more)).fusions
    assert absorb(scale_model(body, {**more, "k": column.reshape(1, 6)})).fusions == ()
    of_rows = absorb(scale_model(body.replace("v, c)", "v)"), more))
    assert len(of_rows.fusions) == 1
    assert of_rows.proof.passed


def test_the_scale_of_another_reader_would_change_the_function_and_fail_the_proof() -> None:
    harmless = scale_model("m = MatMul(x, W) a = Mul(m, ls) y = Tanh(a)")
    harmful = scale_model("m = MatMul(x, W) a = Mul(m, ls) t = Tanh(a) y = Add(t, m)")
    wrong = applied(harmful, absorb(harmless).fusions)
    assert error(harmful, wrong.model) > 1e-2
    assert not wrong.proof.passed


@pytest.mark.parametrize("name", ["W", "b"])
def test_a_wrong_weight_or_a_lost_bias_fails_the_proof(name: str) -> None:
    model = scale_model(BIASED + "y = Mul(a, ls)")
    done = absorb(model)
    assert done.proof.passed
    value = done.model.graph.initializers[name]
    value.const_value = model.graph.initializers[name].const_value
    view = infer(prepare(model).model)
    assert not prove_scales(view, infer(done.model), done.fusions).passed


def test_a_proof_that_is_told_something_else_rests_on_the_numbers() -> None:
    """A claim shows where to look; small weights it compares as they are."""
    model = scale_model(BIASED + "y = Mul(a, ls)")
    fusions = absorb(model).fusions
    assert applied(model, fusions, ()).proof.passed
    assert applied(model, fusions, (replace(fusions[0], output="a"),)).proof.passed
    harmful = scale_model("m = MatMul(x, W) a = Mul(m, ls) t = Tanh(a) y = Add(t, m)")
    harmless = absorb(scale_model("m = MatMul(x, W) a = Mul(m, ls) y = Tanh(a)")).fusions
    assert not applied(harmful, harmless, ()).proof.passed


def test_layer_scale_no_longer_hides_a_writer_from_the_norm_behind_it() -> None:
    body = (
        "p = MatMul(x, V) m = Tanh(p) n = MatMul(m, V2) s = Mul(n, d) r = Add(x2, s) "
        "h = LayerNormalization(r, gamma, beta) q = MatMul(h, W) y = Add(q, b)"
    )
    rng = np.random.default_rng(1)
    body = body.replace("x2", "e").replace("p = MatMul(x, V)", "e = MatMul(x, V3) p = MatMul(x, V)")
    more: dict[str, Array] = {name: rng.standard_normal((6, 6)) for name in ("V2", "V3")}
    more |= {"gamma": rng.standard_normal(6), "beta": rng.standard_normal(6)}
    model = scale_model(body, more)
    assert not decide_all(prepare(model), Settings(), without=AFFINE_PASSES).plan.folds
    fused = decide_all(prepare(model), Settings())
    assert len(fused.plan.folds) == 1
    assert len(fused.plan.scales) == 1
    assert fused.plan.fusions[0].gamma
    assert fused.plan.fusions[0].beta


def test_a_weight_of_three_layers_is_stored_once_for_each_scale() -> None:
    layers = ("Relu", "ls"), ("Exp", "s5"), ("Neg", "k")
    body = " ".join(
        f"x{n} = {op}(x) m{n} = MatMul(x{n}, W) p{n} = Mul(m{n}, {scale}) t{n} = Tanh(p{n})"
        for n, (op, scale) in enumerate(layers)
    )
    assert_moved(f"{body} y = Sum(t0, t1, t2)", 3)
