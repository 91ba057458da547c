"""Norms of several operators, by hand: what is found, and what it owns."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import parser

from onnxfold.norms import EpsilonMode, NormForm, NormKind
from onnxfold.refusal import RefusalCode
from tests.recognition.in_parts import AFFINE, CENTRE, CONSTANTS, DEVIATION, norm
from tests.recognition.replay import (
    FLOAT32_BOUND,
    model,
    only_site,
    replay_error,
    sites_of,
    with_constants,
)


def names(values):
    return [value.name for value in values]


def test_the_form_of_torch_is_one_layer_norm():
    ((site, error),) = replay_error(norm("n = Div(d, s)\nm = Mul(n, g)\ny = Add(m, b)", AFFINE))
    assert (site.kind, site.form) == (NormKind.LAYER_NORM, NormForm.DECOMPOSED)
    assert (site.input.name, site.output.name) == ("x", "y")
    assert (site.gamma.name, site.beta.name) == ("g", "b")
    assert names(site.centred) == ["d"]
    assert (site.size, site.fiber.axes, site.factor) == (8, (2,), 1.0)
    assert (site.epsilon, site.epsilon_mode) == (float(np.float32(1e-5)), EpsilonMode.INSIDE)
    assert [node.op_type for node in site.nodes] == (
        "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add".split()
    )
    assert site.escaping == ()
    assert not site.moves_by_rounding
    assert error < FLOAT32_BOUND


def test_inner_values_that_are_read_elsewhere_leak():
    proto = norm("y = Div(d, s)\nz = Neg(v)", outputs="float[] y, float[] z, float[] u")
    site = only_site(proto)
    assert sorted(names(site.escaping)) == ["u", "v"]


def test_a_quotient_that_two_branches_read_ends_the_norm():
    """As in MMDiT, where one norm feeds two modulations."""
    body = PARTS + "n = Div(d, s)\ny = Mul(n, g)\nz = Mul(n, b)"
    site = only_site(model(body, AFFINE, "float[] y, float[] z"))
    assert site.output.name == "n"
    assert site.gamma is None
    assert site.escaping == ()


OTHER_AXIS = "m = ReduceMean<axes=[1]>(q) f = Add(m, t) w = Sqrt(f) c = Div(x, w) z = Mul(c, b)"


@pytest.mark.parametrize(
    ("other", "escaping"),
    [("c = Div(x, r) z = Mul(c, b)", [[], []]), (OTHER_AXIS, [["q"], ["q"]])],
    ids=["twins", "of another axis"],
)
def test_what_only_twins_read_of_a_norm_does_not_leak(
    other: str, escaping: list[list[str]]
) -> None:
    body = (
        "t = Constant<value = float {1e-5}>() q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) "
        f"e = Add(v, t) r = Sqrt(e) a = Div(x, r) y = Mul(a, g) {other}"
    )
    sites = sites_of(model(body, AFFINE, "float[] y, float[] z"))
    assert [names(site.escaping) for site in sites] == escaping


def facts(site):
    """Return what a site says, its values by name; a gamma that is computed by its type."""
    named = {key: getattr(site, key) for key in ("input", "output", "gamma", "beta")}
    said = {key: getattr(value, "name", value) for key, value in named.items()}
    said |= {key: str(x.dtype) for key, x in said.items() if isinstance(x, np.ndarray)}
    said |= {key: getattr(site, key) for key in ("kind", "form", "moves_by_rounding", "factor")}
    said |= {key: names(getattr(site, key)) for key in ("centred", "escaping")}
    said["blocks"] = [(b.axis, b.inner, b.size, b.outer) for b in site.fiber.blocks]
    return said | {"refusal": site.refusal and site.refusal.code}


GAMMA_FIRST = "r = Reciprocal(s)\nm = Mul(r, g)\n"
PARTS = CONSTANTS + CENTRE + DEVIATION
LATE = f"{PARTS} {GAMMA_FIRST} xm = Mul(x, m) um = Mul(u, m) c = Sub(b, um) y = Add(xm, c)"
BEHIND = f"{PARTS} {GAMMA_FIRST} n = Mul(d, m) y = Add(n, b)"
PLANES = PARTS.replace("[-1]", "[2,3]")
WEIGHTED = """shape = Shape(x) ones = ConstantOfShape<value = float[1] {1.0}>(shape)
wx = Mul(ones, x) sum = ReduceSum<keepdims=1>(wx, axes)
count = ReduceSum<keepdims=1>(ones, axes) ratio = Div(sum, count) none = Equal(count, zero)
u = Where(none, zero, ratio) d = Sub(x, u)"""
WEIGHTS = "axes = Constant<value_ints=[-1]>()\nzero = Constant<value = float {0.0}>()\n"
GAMMA = "float[B,3,8] x, float[8] g"
LAYER, INSTANCE = {"kind": NormKind.LAYER_NORM}, {"kind": NormKind.INSTANCE_NORM}
SPATIAL = INSTANCE | {"refusal": RefusalCode.SPATIAL_NORM}
BOTH = LAYER | {"gamma": "g", "beta": "b", "output": "y"}
ALONE = LAYER | {"gamma": "g", "beta": None, "output": "n"}
# One site each, which computes what its operators do: its text, inputs, and what it says. Inputs
# but x are constants.
SITES = {
    # tf.nn.batch_normalization: x * m + (b - u * m) with m = g / s.
    "gamma in the reciprocal, the mean taken late": (
        LATE,
        AFFINE,
        BOTH | {"moves_by_rounding": True},
    ),
    "a variance of two moments": (
        f"{CONSTANTS} {CENTRE} xx = Mul(x, x) w = ReduceMean<axes=[-1]>(xx) uu = Mul(u, u) "
        "zero = Constant<value = float {0.0}>() raw = Sub(w, uu) v = Max(zero, raw) "
        "ve = Add(v, e) s = Sqrt(ve) y = Div(d, s)",
        "float[B,3,8] x",
        LAYER | {"moves_by_rounding": True},
    ),
    "mean - x, which negates gamma": (
        f"{CONSTANTS} u = ReduceMean<axes=[-1]>(x) d = Sub(u, x) {DEVIATION} n = Div(d, s) "
        "y = Mul(n, g)",
        GAMMA,
        LAYER | {"gamma": "float64", "centred": []},
    ),
    "two constant factors": (
        f"{PARTS} n = Div(d, s) m = Mul(g, n) y = Mul(m, b)",
        AFFINE,
        LAYER | {"gamma": "float64"},
    ),
    # tf.nn.weighted_moments, as Keras 2's GroupNormalization calls it.
    "moments weighted by ones": (
        f"{CONSTANTS} {WEIGHTS} {WEIGHTED} {DEVIATION} y = Div(d, s)",
        "float[B,3,8] x",
        LAYER | {"input": "x", "escaping": []},
    ),
    # What ONNX Runtime leaves of a layer norm without bias.
    "an RMS operator of a difference that it alone reads": (
        f"{CENTRE} y = SimplifiedLayerNormalization<epsilon=1e-5>(d, g)",
        GAMMA,
        LAYER | {"form": NormForm.DECOMPOSED, "input": "x", "gamma": "g"},
    ),
    "a unit InstanceNormalization, gamma along the row": (
        "one = Constant<value = float[3] {1,1,1}>() zero = Constant<value = float[3] {0,0,0}>() "
        "n = InstanceNormalization(x, one, zero) m = Mul(n, g) y = Add(m, b)",
        AFFINE,
        LAYER | {"refusal": None},
    ),
    "groups of a vector": (
        "s = Constant<value_ints=[0,2,-1]>() t = Constant<value_ints=[-1,8]>() "
        "one = Constant<value=float[2] {1,1}>() zero = Constant<value=float[2] {0,0}>() "
        "r = Reshape(x, s) i = InstanceNormalization(r, one, zero) n = Reshape(i, t) "
        "m = Mul(n, g) y = Add(m, b)",
        "float[B,8] x, float[8] g, float[8] b",
        {
            "kind": NormKind.GROUP_NORM,
            "blocks": [(1, 1, 4, 2)],
            "refusal": None,
            "input": "x",
            "output": "y",
        },
    ),
    "an instance norm in parts": (
        f"{PLANES} n = Div(d, s) y = Mul(n, g)",
        "float[B,5,3,4] x, float[5,1,1] g",
        SPATIAL,
    ),
    "DyT": (
        "a = Constant<value=float {0.7}>() x1 = Mul(a, x) t = Tanh(x1) m = Mul(t, g) y = Add(m, b)",
        AFFINE,
        {"kind": NormKind.DYT, "gamma": "g", "beta": "b", "factor": float(np.float32(0.7))},
    ),
    "the same layout made twice": (
        f"t = Transpose<perm=[0,2,1]>(x) t2 = Transpose<perm=[0,2,1]>(x) q = Mul(t, t) {CONSTANTS} "
        "v = ReduceMean<axes=[-1]>(q) ve = Add(v, e) s = Sqrt(ve) y = Div(t2, s)",
        "float[B,3,8] x",
        {"kind": NormKind.RMS_NORM},
    ),
    "two affines, the second outside": (
        f"{PARTS} n = Div(d, s) m = Mul(n, g) h = Add(m, b) k = Mul(h, g) y = Add(k, b)",
        AFFINE,
        LAYER | {"output": "h"},
    ),
}
CONDITIONED = {
    "of each sample": "float[B,1,8] g, float[B,1,8] b",
    "of each position": "float[3,8] g, float[3,8] b",
    "one number of each sample": "float[B,1,1] g, float[B,1,1] b",
}
# Not constants: tf.nn.batch_normalization with a scale and an offset that depend on a condition.
GIVEN = {
    **{f"inside, {key}": (LATE, f"float[B,3,8] x, {of}", BOTH) for key, of in CONDITIONED.items()},
    **{
        f"behind, {key}": (BEHIND, f"float[B,3,8] x, {of}", ALONE)
        for key, of in CONDITIONED.items()
    },
    "a gamma of lower rank": (
        f"{PARTS} n = Div(d, s) y = Mul(n, g)",
        GAMMA,
        LAYER | {"gamma": "g"},
    ),
    "a conditional instance norm": (
        f"{PLANES} {GAMMA_FIRST} y = Mul(d, m)",
        "float[B,3,4,5] x, float[B,3,1,1] g",
        SPATIAL,
    ),
}


@pytest.mark.parametrize("name", [*SITES, *GIVEN])
def test_one_site_says_what_it_is_and_computes_it(name):
    body, inputs, expected = (SITES | GIVEN)[name]
    proto = model(body, inputs)
    ((site, error),) = replay_error(with_constants(proto) if name in SITES else proto)
    said = facts(site)
    assert {key: said[key] for key in expected} == expected
    assert error < FLOAT32_BOUND


_CLIPPED = {
    "Min before Max": "a = Min(ve, inf) c = Max(a, zero)",
    "Max before Min": "a = Max(ve, zero) c = Min(a, inf)",
    "constants first": "a = Min(inf, ve) c = Max(zero, a)",
    "Max first, constants first": "a = Max(zero, ve) c = Min(inf, a)",
    "Min alone": "c = Min(ve, inf)",
    "Max of three": "a = Max(zero, ve, zero) c = Min(inf, a, largest)",
    "Abs": "c = Abs(ve)",
    "the largest float": "c = Min(largest, ve)",
    "Clip": "c = Clip(ve, zero, inf)",
    "Clip from above": "c = Clip(ve, , inf)",
    "Clip of nothing": "c = Clip(ve)",
    "Relu": "c = Relu(ve)",
    "Relu and Min": "a = Relu(ve) c = Min(a, inf)",
}
_LIMITS = (
    "inf = Constant<value = float {inf}>() zero = Constant<value = float {0.0}>() "
    "largest = Constant<value = float {3.4028234e38}>() "
)


@pytest.mark.parametrize("place", ["with epsilon", "without", "behind the root"])
@pytest.mark.parametrize("clipped", _CLIPPED.values(), ids=_CLIPPED)
def test_a_statistic_may_be_clipped_from_zero_to_infinity(clipped: str, place: str) -> None:
    """K.sqrt of Keras 2, which tf2onnx writes as Min(., inf) and Max(., 0), and its relatives."""
    steps = {
        "with epsilon": f"ve = Add(v, e) {clipped} s = Sqrt(c)",
        "without": f"{clipped.replace('ve', 'v')} f = Add(c, e) s = Sqrt(f)",
        "behind the root": f"f = Add(v, e) ve = Sqrt(f) {clipped} s = Identity(c)",
    }
    body = CONSTANTS + CENTRE + _LIMITS + "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) "
    ((site, error),) = replay_error(model(f"{body}{steps[place]} y = Div(d, s)"))
    assert (site.kind, site.epsilon_mode) == (NormKind.LAYER_NORM, EpsilonMode.INSIDE)
    assert site.epsilon == float(np.float32(1e-5))
    assert error < FLOAT32_BOUND


@pytest.mark.parametrize("clipped", ["c = Min(ve, two)", "c = Clip(ve, zero, two)"])
def test_a_statistic_that_is_bounded_from_above_is_none(clipped: str) -> None:
    """In rows of large numbers it is another function."""
    body = CONSTANTS + CENTRE + _LIMITS + "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) "
    assert sites_of(model(f"{body}ve = Add(v, e) {clipped} s = Sqrt(c) y = Div(d, s)")) == ()


@pytest.mark.parametrize("beta", ["float[B,3,8] b", "float[2,1,1,8] b"])
def test_a_stream_beside_the_mean_is_no_beta(beta):
    """A residual that is added early, and a term that would enlarge the result."""
    assert sites_of(model(LATE, f"{GAMMA}, {beta}")) == ()


def test_a_gate_of_the_size_of_the_stream_is_no_gamma():
    body = f"{PARTS} {GAMMA_FIRST} y = Mul(d, m)"
    assert sites_of(model(body, "float[B,3,8] x, float[B,3,8] g")) == ()


def test_a_variance_over_a_ratio_of_numbers_of_elements_is_a_mean() -> None:
    """As Paddle exports x.var(): numel(x) / numel(sum), both as floats."""
    body = (
        "axes = Constant<value_ints = [-1]>() q = Mul(d, d) a = ReduceSum(q, axes) "
        "whole = Size(x) parts = Size(a) i = Cast<to = 1>(whole) j = Cast<to = 1>(parts) "
        "n = Div(i, j) v = Div(a, n) ve = Add(v, e) s = Sqrt(ve) y = Div(d, s)"
    )
    for counted, factor in (("x", 1.0), ("u", 8.0)):
        text = body.replace("Size(x)", f"Size({counted})")
        ((site, error),) = replay_error(model(CONSTANTS + CENTRE + text))
        assert (site.kind, site.size) == (NormKind.LAYER_NORM, 8)
        assert np.isclose(site.factor, factor)
        assert error < FLOAT32_BOUND
    # The number of all elements, which no name bounds, may be inf in float16.
    half = body.replace("Cast<to = 1>", "Cast<to = 10>")
    half = half.replace("v = Div(a, n)", "f = Cast<to = 1>(n) v = Div(a, f)")
    assert "y" not in [site.output.name for site in sites_of(model(CONSTANTS + CENTRE + half))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float[1] {1.0}", "float[1] {0.5}"),
        ("ReduceSum<keepdims=1>(ones, axes)", "ReduceSum<keepdims=1>(x, axes)"),
        ("Where(none, zero, ratio)", "Where(none, ratio, zero)"),
        ("Equal(count, zero)", "Equal(x, zero)"),
    ],
    ids=["other weights", "another count", "the other branch", "undecided"],
)
def test_moments_weighted_by_anything_else_are_none(old, new):
    body = CONSTANTS + WEIGHTS + WEIGHTED.replace(old, new) + DEVIATION + "y = Div(d, s)"
    kinds = {site.kind for site in sites_of(model(body)) if site.input.name == "x"}
    assert kinds <= {NormKind.RMS_NORM}


@pytest.mark.parametrize(
    ("condition", "kinds"), [("1, 1, 1", [NormKind.LAYER_NORM]), ("1, 0, 1", []), ("1, 1, 0", [])]
)
def test_a_mean_that_a_constant_chooses_for_some_rows_is_none(condition, kinds):
    rows = f"rows = Constant<value = bool[3,1] {{{condition}}}>()\n"
    centre = "m = ReduceMean<axes=[-1]>(x)\nu = Where(rows, m, zero)\nd = Sub(x, u)\n"
    proto = model(CONSTANTS + WEIGHTS + rows + centre + DEVIATION + "y = Div(d, s)")
    assert [site.kind for site in sites_of(proto) if site.kind is not NormKind.RMS_NORM] == kinds


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_a_norm_of_a_weight_of_one_number_is_a_norm(number):
    """Centring may make a weight zero, and the norm must be recognized as before."""
    body = (CONSTANTS + CENTRE + DEVIATION).replace("(x", "(w") + "y = Div(d, s)"
    proto = model(body, "float[B,8] x, float[3,8] w")
    assert only_site(with_constants(proto, w=np.full((3, 8), number))).input.name == "w"


def test_ones_over_an_axis_of_unknown_size_count_nothing():
    body = CONSTANTS + WEIGHTS.replace("[-1]", "[0]") + WEIGHTED
    body += DEVIATION.replace("[-1]", "[0]") + "y = Div(d, s)"
    assert [site.input.name for site in sites_of(model(body))] != ["x"]


def test_an_rms_operator_on_a_shared_difference_stays_an_rms_norm():
    body = CENTRE + "y = SimplifiedLayerNormalization(d, g)\nz = Neg(d)"
    proto = with_constants(model(body, "float[B,3,8] x, float[8] g", "float[] y, float[] z"))
    site = only_site(proto)
    assert site.kind is NormKind.RMS_NORM
    assert site.input.name == "d"


def test_add_of_exact_zero_vanishes_and_of_almost_zero_does_not():
    tail = "z = Constant<value=float {0.0}>()\nn = Div(d, s)\nm = Add(n, z)\ny = Mul(m, g)"
    site = only_site(norm(tail, "float[B,3,8] x, float[8] g"))
    assert site.output.name == "y"
    assert site.beta is None
    almost = tail.replace("{0.0}", "{1e-9}")
    assert only_site(norm(almost, "float[B,3,8] x, float[8] g")).output.name == "m"


def test_norms_in_a_row_are_one_site_each():
    body = PARTS + "n = Div(d, s)\nm = Mul(n, g)\ny1 = Add(m, b)\n"
    second = CENTRE + DEVIATION + "n = Div(d, s)\nm = Mul(n, g)\ny = Add(m, b)"
    second = re.sub(r"\bx\b", "y1", second)
    second = re.sub(r"\b(u|d|q|v|ve|s|n|m)\b", r"\g<1>2", second)
    found = replay_error(with_constants(model(body + second, AFFINE)))
    assert [(site.input.name, site.output.name) for site, _ in found] == [("x", "y1"), ("y1", "y")]
    assert all(error < FLOAT32_BOUND for _, error in found)


def test_a_gamma_too_large_to_read_is_still_a_gamma():
    body = PARTS.replace("[-1]", "[1,2]") + "n = Div(d, s)\ny = Mul(n, g)"
    proto = with_constants(model(body, "float[2,300,300] x, float[300,300] g"))
    ((site, error),) = replay_error(proto)
    assert site.gamma.name == "g"
    assert error < 10 * FLOAT32_BOUND  # sums of 90000 elements in float32


def test_an_instance_norm_of_unknown_rank_is_refused_but_reported():
    body = "h = com.microsoft.Unheard(x)\ny = InstanceNormalization(h, g, b)"
    site = only_site(model(body, "float[B,8] x, float[8] g, float[8] b"))
    assert site.kind is NormKind.INSTANCE_NORM
    assert site.refusal.code is RefusalCode.DYNAMIC_FIBER


def test_a_reshaped_stream_that_a_residual_reads_is_itself_the_input():
    """OPT flattens tokens before a norm and keeps the residual flat."""
    body = "a = Constant<value_ints=[-1,8]>()\nr = Reshape(x, a)\n"
    body += CONSTANTS + (CENTRE + DEVIATION).replace("(x", "(r") + "n = Div(d, s)\nm = Mul(n, g)\n"
    body += "z = Add(r, m)\nshape = Constant<value_ints=[-1,3,8]>()\ny = Reshape(m, shape)"
    proto = model(body, "float[B,3,8] x, float[8] g", "float[] y, float[] z")
    site = only_site(with_constants(proto))
    assert (site.input.name, site.output.name) == ("r", "m")
    assert site.escaping == ()


@pytest.mark.parametrize(
    ("inside", "kind", "normalised"),
    [
        ("Squeeze(r, zero)", NormKind.LAYER_NORM, "x"),
        ("Transpose<perm=[0,1,3,2,4]>(r)", NormKind.RMS_NORM, "d"),
    ],
)
def test_a_mean_that_reshapes_take_back_to_its_shape_is_the_mean(inside, kind, normalised):
    """As tf2onnx moves it around a convolution with dilations; turned on the way it is another."""
    body = CONSTANTS + "u = ReduceMean<axes=[-1]>(x)\nzero = Constant<value_ints=[0]>()\n"
    body += "a = Constant<value_ints=[1,1,3,3,1]>()\nr = Reshape(u, a)\n"
    body += f"m = {inside}\nb = Constant<value_ints=[3,3,1]>()\nback = Reshape(m, b)\n"
    body += "d = Sub(x, back)\n" + DEVIATION + "y = Div(d, s)"
    proto = with_constants(model(body, "float[3,3,8] x"))
    ((site, error),) = replay_error(proto)
    assert (site.kind, site.input.name, site.escaping) == (kind, normalised, ())
    means = [node.op_type for node in site.nodes].count("ReduceMean")
    assert means == (2 if kind is NormKind.LAYER_NORM else 1)  # its own, and what leads to it
    assert error < FLOAT32_BOUND


def test_a_mean_that_is_read_as_it_is_and_behind_reshapes_does_not_leak():
    """As tf2onnx takes -mean(x) gamma late, and the difference behind Reshapes."""
    body = CONSTANTS + "u = ReduceMean<axes=[-1]>(x)\na = Constant<value_ints=[1,3,1,3]>()\n"
    body += "r = Reshape(u, a)\nb = Constant<value_ints=[3,3,1]>()\nback = Reshape(r, b)\n"
    body += "d = Sub(x, back)\n" + DEVIATION + "i = Reciprocal(s)\nxi = Mul(x, i)\n"
    body += "n = Neg(u)\nni = Mul(n, i)\ny = Add(xi, ni)"
    ((site, error),) = replay_error(with_constants(model(body, "float[3,3,8] x")))
    assert (site.kind, site.escaping) == (NormKind.LAYER_NORM, ())
    assert error < 4 * FLOAT32_BOUND  # x / s and mean / s are rounded before their difference


def test_a_norm_in_a_body_of_a_value_from_outside_owns_only_what_is_inside():
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (bool c, float16[2,8] h, float16[2,8] z) => (float[2,8] y)
        {
            x = Cast<to=1>(h)
            y = If(c) <
                then_branch = one () => (float[2,8] a)
                    { q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) s = Sqrt(v) a = Div(x, s) },
                else_branch = two () => (float[2,8] b) { b = Cast<to=1>(z) }
            >
        }"""
    )
    site = only_site(proto)
    assert site.input.name == "x"
    assert [node.op_type for node in site.nodes] == ["Mul", "ReduceMean", "Sqrt", "Div"]


@pytest.mark.parametrize(
    ("shape", "axes"), [("8", (0,)), ("3,8", (0, 1)), ("1,8", (1,))], ids=["row", "table", "batch"]
)
def test_reductions_without_axes_run_over_all(shape, axes):
    """Of a single row, gamma has the rank of x and of every value in between."""
    body = (CENTRE + DEVIATION).replace("<axes=[-1]>", "") + "n = Div(d, s)\ny = Mul(g, n)"
    proto = with_constants(model(CONSTANTS + body, f"float[{shape}] x, float[8] g"))
    ((site, error),) = replay_error(proto)
    assert site.kind is NormKind.LAYER_NORM
    assert site.fiber.axes == axes
    assert (site.input.name, site.gamma.name, site.output.name) == ("x", "g", "y")
    assert error < FLOAT32_BOUND
