"""What only looks like a norm, or like a part of one, is left alone."""

from __future__ import annotations

import pytest

from onnxfold.norms import NormKind
from tests.recognition.in_parts import CENTRE, CONSTANTS, DEVIATION, norm
from tests.recognition.replay import (
    FLOAT32_BOUND,
    model,
    only_site,
    replay_error,
    sites_of,
    with_constants,
)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ("float[B,3,8] x, float[3,1] g", "it varies along another axis"),
        ("float[B,3,8] x, float[3,8] g", "it varies along another axis too, as RoPE tables do"),
        ("float[B,3,8] x, float[2,1,1,8] g", "it makes the result larger"),
    ],
)
def test_a_gamma_that_is_no_gamma_stays_outside(inputs, why):
    site = only_site(norm("n = Div(d, s)\ny = Mul(n, g)", inputs))
    assert site.output.name == "n", why
    assert site.gamma is None


def test_a_residual_is_not_a_bias_although_its_shape_would_do():
    body = CONSTANTS + CENTRE + DEVIATION + "n = Div(d, s)\ny = Add(n, r)"
    site = only_site(model(body, "float[1,8] x, float[1,8] r"))
    assert site.output.name == "n"


def test_a_mean_of_other_axes_leaves_an_rms_norm_of_the_difference():
    body = CONSTANTS + CENTRE + DEVIATION.replace("[-1]", "[-2,-1]") + "y = Div(d, s)"
    ((site, error),) = replay_error(model(body))
    assert site.kind is NormKind.RMS_NORM
    assert site.input.name == "d"
    assert site.fiber.axes == (1, 2)
    assert error < FLOAT32_BOUND


@pytest.mark.parametrize(
    "other",
    [
        "u2 = ReduceMean<axes=[-2]>(x)\nd2 = Sub(x, u2)\n",
        "d2 = Sub(u, x)\n",
        "w = Neg(x)\nu2 = ReduceMean<axes=[-1]>(w)\nd2 = Sub(w, u2)\n",
        "u2 = ReduceMean<axes=[-1]>(z)\nd2 = Sub(z, u2)\n",
    ],
)
def test_the_product_of_two_differences_that_are_not_equal_is_no_square(other):
    spread = DEVIATION.replace("Pow(d, two)", "Mul(d, d2)")
    body = CONSTANTS + CENTRE + other + spread + "y = Div(d, s)"
    assert not sites_of(model(body, "float[B,3,8] x, float[B,3,8] z"))


def test_a_difference_that_is_not_quite_centred_is_only_an_rms_input():
    body = (
        CONSTANTS + "t = ReduceSum<keepdims=1>(x, a)\nninth = Constant<value=float {0.111111}>()\n"
    )
    body = "a = Constant<value_ints=[-1]>()\n" + body + "u = Mul(t, ninth)\nd = Sub(x, u)\n"
    site = only_site(model(body + DEVIATION + "y = Div(d, s)"))
    assert site.kind is NormKind.RMS_NORM
    assert site.input.name == "d"


def test_a_factor_that_is_computed_for_each_row_stays_outside():
    site = only_site(norm("n = Div(d, s)\nr = ReduceMax<axes=[0,2]>(x)\ny = Mul(n, r)"))
    assert site.output.name == "n"
    assert site.gamma is None


def test_of_two_gammas_that_are_computed_the_second_stays_outside():
    """No value of the graph holds their product."""
    gammas = "g = ReduceMax<axes=[0,1], keepdims=0>(x)\nh = Exp(g)\n"
    ((site, error),) = replay_error(norm(f"{gammas}n = Div(d, s)\nz = Mul(n, g)\ny = Mul(z, h)"))
    assert site.output.name == "z"
    assert site.gamma.name == "g"
    assert error < FLOAT32_BOUND


NOT_NORMS = {
    "uncentred numerator over a variance": "y = Div(x, s)",
    "operands of Div exchanged": "y = Div(s, d)",
    "reciprocal of the wrong thing": "r = Reciprocal(d)\ny = Mul(r, s)",
    "multiplied with the deviation": "y = Mul(d, s)",
    "another tensor's deviation": "w = Exp(x)\nt = ReduceMean<axes=[-1]>(w)\n"
    "f = Sub(w, t)\ny = Div(f, s)",
    "deviation squared": "ss = Mul(s, s)\ny = Div(d, ss)",
}


@pytest.mark.parametrize("tail", NOT_NORMS.values(), ids=NOT_NORMS)
def test_what_only_looks_like_a_norm_is_none(tail):
    assert sites_of(norm(tail)) == ()


@pytest.mark.parametrize(
    "epsilon", ["float[8] e", "float[B,3,1] e", "float e"], ids=["vector", "tensor", "runtime"]
)
def test_an_epsilon_that_is_no_constant_scalar_is_no_norm(epsilon):
    body = CONSTANTS.split("\n", maxsplit=1)[0] + "\n" + CENTRE + DEVIATION + "y = Div(d, s)"
    assert sites_of(model(body, f"float[B,3,8] x, {epsilon}")) == ()


def test_a_negative_epsilon_is_no_norm():
    body = CONSTANTS.replace("1e-5", "-1e-5") + CENTRE + DEVIATION + "y = Div(d, s)"
    assert sites_of(model(body)) == ()


def test_an_exponent_of_three_is_no_norm():
    body = CONSTANTS.replace("2.0", "3.0") + CENTRE + DEVIATION + "y = Div(d, s)"
    assert sites_of(model(body)) == ()


def test_dropped_axes_of_a_square_are_no_norm():
    """[8,8] minus a mean of shape [8] broadcasts silently along the wrong axis."""
    body = CONSTANTS + "u = ReduceMean<axes=[-1], keepdims=0>(x)\nd = Sub(x, u)\n" + DEVIATION
    sites = sites_of(model(body + "y = Div(d, s)", "float[8,8] x"))
    assert [(site.kind, site.input.name) for site in sites] == [(NormKind.RMS_NORM, "d")]
    kept = CONSTANTS + CENTRE + DEVIATION.replace("[-1]", "[-1], keepdims=0") + "y = Div(d, s)"
    assert sites_of(model(kept, "float[8,8] x")) == ()


def test_dropped_leading_axes_broadcast_rightly():
    body = CONSTANTS + CENTRE + DEVIATION + "y = Div(d, s)"
    ((site, error),) = replay_error(model(body.replace("[-1]", "[0], keepdims=0"), "float[8,5] x"))
    assert site.fiber.axes == (0,)
    assert error < FLOAT32_BOUND


def test_the_false_friend_of_jax2onnx_0_3_is_no_norm():
    """Statistics over all axes, and a numerator that is not centered."""
    body = CONSTANTS + "u = ReduceMean(x)\nd = Sub(x, u)\nq = Mul(d, d)\nv = ReduceMean(q)\n"
    assert (
        sites_of(model(body + "ve = Add(v, e)\ns = Sqrt(ve)\ny = Div(x, s)", "float[4,3,8] x"))
        == ()
    )


def test_global_response_normalization_is_no_norm():
    body = "a = ReduceL2<axes=[1,2]>(x)\nu = ReduceMean<axes=[-1]>(a)\n" + CONSTANTS
    body += "ue = Add(u, e)\nr = Div(a, ue)\ny = Mul(x, r)"
    assert sites_of(model(body, "float[B,4,5,8] x")) == ()


def test_softmax_spelled_out_is_no_norm():
    body = (
        "m = ReduceMax<axes=[-1]>(x)\nd = Sub(x, m)\nw = Exp(d)\na = Constant<value_ints=[-1]>()\n"
    )
    assert sites_of(model(body + "t = ReduceSum(w, a)\ny = Div(w, t)")) == ()


def test_the_tanh_form_of_gelu_is_no_dyt():
    body = "a = Constant<value=float {0.7978846}>()\none = Constant<value=float {1.0}>()\n"
    body += "x1 = Mul(x, a)\nt = Tanh(x1)\nt1 = Add(t, one)\nh = Mul(x, t1)\ny = Mul(h, g)"
    assert sites_of(with_constants(model(body, "float[B,3,8] x, float[8] g"))) == ()


def test_a_row_of_unknown_size_that_a_reshape_joins_stays_a_row() -> None:
    body = (
        "flat = Constant<value_ints=[0,-1]>()\nf = Reshape(x, flat)\nm = ReduceMean<axes=[1]>(f)\n"
        "d = Sub(f, m)\nq = Mul(d, d)\nv = ReduceMean<axes=[1]>(q)\n"
        "e = Constant<value_float=1e-5>()\n"
        "ve = Add(v, e)\ns = Sqrt(ve)\nn = Div(d, s)\nshape = Shape(x)\ny = Reshape(n, shape)"
    )
    (site,) = sites_of(model(body, "float[N,8,S] x"))
    assert site.input.name == "f"
