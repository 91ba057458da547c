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


X = "float[B,3,8] x"
PARTS = CONSTANTS + CENTRE + DEVIATION
LAYER_NORM = PARTS + "y = Div(d, s)"
OWN_EPSILON = LAYER_NORM.replace(CONSTANTS, CONSTANTS.split("\n", maxsplit=1)[0] + "\n")
DIFFERENCES = LAYER_NORM.replace("Pow(d, two)", "Mul(d, d2)")
# Text and inputs.
NOT_NORMS = {
    "uncentred numerator over a variance": (PARTS + "y = Div(x, s)", X),
    "operands of Div exchanged": (PARTS + "y = Div(s, d)", X),
    "reciprocal of the wrong thing": (PARTS + "r = Reciprocal(d)\ny = Mul(r, s)", X),
    "multiplied with the deviation": (PARTS + "y = Mul(d, s)", X),
    "another tensor's deviation": (
        PARTS + "w = Exp(x)\nt = ReduceMean<axes=[-1]>(w)\nf = Sub(w, t)\ny = Div(f, s)",
        X,
    ),
    "deviation squared": (PARTS + "ss = Mul(s, s)\ny = Div(d, ss)", X),
    **{
        f"d d2 of {key}": (DIFFERENCES.replace(CENTRE, CENTRE + other), f"{X}, float[B,3,8] z")
        for key, other in {
            "another axis": "u2 = ReduceMean<axes=[-2]>(x)\nd2 = Sub(x, u2)\n",
            "the other sign": "d2 = Sub(u, x)\n",
            "-x": "w = Neg(x)\nu2 = ReduceMean<axes=[-1]>(w)\nd2 = Sub(w, u2)\n",
            "another tensor": "u2 = ReduceMean<axes=[-1]>(z)\nd2 = Sub(z, u2)\n",
        }.items()
    },
    "an epsilon that is a vector": (OWN_EPSILON, f"{X}, float[8] e"),
    "an epsilon that is a tensor": (OWN_EPSILON, f"{X}, float[B,3,1] e"),
    "an epsilon that is an input": (OWN_EPSILON, f"{X}, float e"),
    "a negative epsilon": (LAYER_NORM.replace("1e-5", "-1e-5"), X),
    "an exponent of three": (LAYER_NORM.replace("2.0", "3.0"), X),
    # [8,8] by a deviation of shape [8] broadcasts silently along the wrong axis.
    "dropped axes of a square": (
        CONSTANTS + CENTRE + DEVIATION.replace("[-1]", "[-1], keepdims=0") + "y = Div(d, s)",
        "float[8,8] x",
    ),
    # Statistics over all axes, and a numerator that is not centered.
    "the false friend of jax2onnx 0.3": (
        CONSTANTS + "u = ReduceMean(x)\nd = Sub(x, u)\nq = Mul(d, d)\nv = ReduceMean(q)\n"
        "ve = Add(v, e)\ns = Sqrt(ve)\ny = Div(x, s)",
        "float[4,3,8] x",
    ),
    "global response normalization": (
        CONSTANTS + "a = ReduceL2<axes=[1,2]>(x)\nu = ReduceMean<axes=[-1]>(a)\n"
        "ue = Add(u, e)\nr = Div(a, ue)\ny = Mul(x, r)",
        "float[B,4,5,8] x",
    ),
    "softmax spelled out": (
        "m = ReduceMax<axes=[-1]>(x)\nd = Sub(x, m)\nw = Exp(d)\n"
        "a = Constant<value_ints=[-1]>()\nt = ReduceSum(w, a)\ny = Div(w, t)",
        X,
    ),
}


@pytest.mark.parametrize(("body", "inputs"), NOT_NORMS.values(), ids=NOT_NORMS)
def test_what_only_looks_like_a_norm_is_none(body, inputs):
    assert sites_of(model(body, inputs)) == ()


def test_the_tanh_form_of_gelu_is_no_dyt():
    body = "a = Constant<value=float {0.7978846}>()\none = Constant<value=float {1.0}>()\n"
    body += "x1 = Mul(x, a)\nt = Tanh(x1)\nt1 = Add(t, one)\nh = Mul(x, t1)\ny = Mul(h, g)"
    assert sites_of(with_constants(model(body, "float[B,3,8] x, float[8] g"))) == ()


def test_dropped_axes_of_a_mean_leave_an_rms_norm():
    """[8,8] minus a mean of shape [8] broadcasts silently along the wrong axis."""
    body = CONSTANTS + "u = ReduceMean<axes=[-1], keepdims=0>(x)\nd = Sub(x, u)\n" + DEVIATION
    sites = sites_of(model(body + "y = Div(d, s)", "float[8,8] x"))
    assert [(site.kind, site.input.name) for site in sites] == [(NormKind.RMS_NORM, "d")]


def test_dropped_leading_axes_broadcast_rightly():
    body = CONSTANTS + CENTRE + DEVIATION + "y = Div(d, s)"
    ((site, error),) = replay_error(model(body.replace("[-1]", "[0], keepdims=0"), "float[8,5] x"))
    assert site.fiber.axes == (0,)
    assert error < FLOAT32_BOUND


def test_a_row_of_unknown_size_that_a_reshape_joins_stays_a_row() -> None:
    body = (
        "flat = Constant<value_ints=[0,-1]>()\nf = Reshape(x, flat)\nm = ReduceMean<axes=[1]>(f)\n"
        "d = Sub(f, m)\nq = Mul(d, d)\nv = ReduceMean<axes=[1]>(q)\n"
        "e = Constant<value_float=1e-5>()\n"
        "ve = Add(v, e)\ns = Sqrt(ve)\nn = Div(d, s)\nshape = Shape(x)\ny = Reshape(n, shape)"
    )
    (site,) = sites_of(model(body, "float[N,8,S] x"))
    assert site.input.name == "f"
