"""Norms that are one operator: what the site says, and that it computes the operator's result."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnxfold
from onnxfold.norms import EpsilonMode, NormForm, NormKind
from onnxfold.norms.site import cast_of_centred
from onnxfold.recognition import find_norms
from onnxfold.refusal import RefusalCode
from onnxfold.shapes import infer
from tests.recognition.replay import FLOAT32_BOUND, only_site, replay_error, sites_of
from tests.recognition.replay import model as text_model


def model(body: str, inputs: str = "float[B,3,8] x", *, opset: int = 23) -> onnx.ModelProto:
    return text_model(body, inputs, opset=opset)


@pytest.mark.parametrize(
    ("axis", "axes"),
    [(-1, (2,)), (2, (2,)), (-2, (1, 2)), (1, (1, 2))],
)
def test_layer_normalization_reads_any_axis_form(axis, axes):
    shape = {(2,): "8", (1, 2): "3,8"}[axes]
    proto = model(
        f"y = LayerNormalization<axis={axis}, epsilon=1e-6>(x, g, b)",
        f"float[B,3,8] x, float[{shape}] g, float[{shape}] b",
    )
    ((site, error),) = replay_error(proto)
    assert site.kind is NormKind.LAYER_NORM
    assert site.form is NormForm.OP
    assert site.fiber.axes == axes
    assert site.fiber.whole
    assert site.size == {(2,): 8, (1, 2): 24}[axes]
    assert site.epsilon == float(np.float32(1e-6))
    assert error < FLOAT32_BOUND


def test_defaults_are_those_of_the_specification():
    site = only_site(model("y = LayerNormalization(x, g)", "float[B,3,8] x, float[8] g"))
    assert site.epsilon == float(np.float32(1e-5))  # as an attribute would hold it
    assert site.fiber.axes == (2,)
    assert site.beta is None


def test_a_scale_of_ones_and_a_bias_of_zeros_are_absent():
    site = only_site(
        model(
            "g = Constant<value = float[8] {1,1,1,1,1,1,1,1}>()\n"
            "b = Constant<value = float[8] {0,0,0,0,0,0,0,0}>()\n"
            "y = LayerNormalization(x, g, b)"
        )
    )
    assert site.gamma is None
    assert site.beta is None


def test_statistics_that_something_reads_leak():
    site = only_site(
        model("y, mean, inv = LayerNormalization(x, g)\nz = Neg(inv)", "float[2,8] x, float[8] g")
    )
    assert [value.name for value in site.escaping] == ["inv"]


def test_the_scale_tells_a_size_that_the_input_does_not():
    site = only_site(model("y = LayerNormalization(x, g)", "float[B,T,D] x, float[8] g"))
    assert site.size == 8
    assert site.refusal is None


def test_an_unknown_size_or_rank_is_refused_but_reported():
    dynamic = only_site(model("y = RMSNormalization(x, g)", "float[B,D] x, float[D] g"))
    assert dynamic.size == 0
    assert dynamic.refusal is not None
    assert dynamic.refusal.code is RefusalCode.DYNAMIC_FIBER
    body = "h = com.microsoft.Unheard(x)\ny = RMSNormalization(h, g)"
    anything = only_site(model(body, "float[B,8] x, float[8] g"))
    assert anything.size == 0
    assert anything.refusal is not None


@pytest.mark.parametrize(
    ("axis", "x", "scale"),
    [(1, "B,3,8", "24"), (-1, "8", "1,8"), (-1, "3,8", "1,1,8"), (1, "3,8", "0")],
)
def test_a_scale_that_does_not_broadcast_is_refused(axis, x, scale):
    call = f"y = LayerNormalization<axis={axis}>(x, g)"
    site = only_site(model(call, f"float[{x}] x, float[{scale}] g"))
    assert site.refusal is not None
    assert site.refusal.code is RefusalCode.UNKNOWN_SHAPE


@pytest.mark.parametrize(
    ("call", "form"),
    [
        ("RMSNormalization<epsilon=1e-6>(x, g)", NormForm.OP),
        ("SimplifiedLayerNormalization<epsilon=1e-6>(x, g)", NormForm.CONTRIB),
        ("com.microsoft.SimplifiedLayerNormalization<epsilon=1e-6>(x, g)", NormForm.CONTRIB),
        ("onnxfold.RMSNormScale<axes=[-1], axis=-1, epsilon=1e-6>(x, g)", NormForm.OP),
    ],
)
def test_rms_operators_of_every_domain_are_one_form(call, form):
    site = only_site(model(f"y = {call}", "float[B,3,8] x, float[8] g"))
    assert site.kind is NormKind.RMS_NORM
    assert site.form is form
    assert site.gamma is not None
    assert site.gamma.name == "g"
    assert site.size == 8
    assert site.epsilon == float(np.float32(1e-6))


def test_onnxfold_layer_norm_over_two_axes():
    site = only_site(
        model(
            "y = onnxfold.LayerNormAffine<axes=[-2,-1], axis=-2, epsilon=1e-5>(x, g, b)",
            "float[B,3,8] x, float[3,8] g, float[3,8] b",
        )
    )
    assert site.kind is NormKind.LAYER_NORM
    assert site.fiber.axes == (1, 2)
    assert site.beta is not None


def test_layer_normalization_below_its_opset_is_read():
    site = only_site(model("y = LayerNormalization(x, g)", "float[2,8] x, float[8] g", opset=14))
    assert site.kind is NormKind.LAYER_NORM


def test_lp_normalization_of_order_2_is_an_l2_norm():
    ((site, error),) = replay_error(model("y = LpNormalization<axis=1, p=2>(x)"))
    assert site.kind is NormKind.L2_NORM
    assert site.factor == site.size == 3
    assert site.epsilon_mode is EpsilonMode.MAX_OUTSIDE  # a row of zeros gives zeros
    assert 0 < site.epsilon < 1e-44
    assert error < FLOAT32_BOUND
    assert sites_of(model("y = LpNormalization<axis=1, p=1>(x)")) == ()


def test_mean_variance_normalization_adds_epsilon_outside():
    proto = model("y = MeanVarianceNormalization<axes=[1,2]>(x)")
    ((site, error),) = replay_error(proto)
    assert site.epsilon_mode is EpsilonMode.OUTSIDE
    assert site.epsilon == 1e-9
    assert error < FLOAT32_BOUND


@pytest.mark.parametrize("dtype", ["FLOAT16", "DOUBLE"])
@pytest.mark.parametrize("call", ["LpNormalization<axis=1>", "MeanVarianceNormalization<axes=[1]>"])
def test_a_norm_computes_in_the_type_of_x(call: str, dtype: str) -> None:
    site = only_site(model(f"y = {call}(x)", f"{dtype.lower()}[B,3,8] x"))
    assert site.compute_dtype is ir.DataType[dtype]


def test_group_normalization_has_scales_per_group_in_18_and_per_channel_in_21():
    for opset, length in ((18, 2), (21, 8)):
        proto = model(
            "y = GroupNormalization<num_groups=2>(x, g, b)",
            f"float[B,8,3,4] x, float[{length}] g, float[{length}] b",
            opset=opset,
        )
        ((site, error),) = replay_error(proto)
        assert site.kind is NormKind.GROUP_NORM
        assert site.affine_axis == 1
        assert site.affine_repeat == (4 if opset == 18 else 1)
        assert site.size == 48
        assert site.refusal is not None
        assert site.refusal.code is RefusalCode.SPATIAL_NORM
        assert error < FLOAT32_BOUND


def test_group_normalization_of_vectors_has_a_block_fiber_and_no_refusal():
    proto = model(
        "y = GroupNormalization<num_groups=2>(x, g, b)", "float[B,8] x, float[8] g, float[8] b"
    )
    ((site, error),) = replay_error(proto)
    (block,) = site.fiber.blocks
    assert (block.axis, block.inner, block.size, block.outer) == (1, 1, 4, 2)
    assert site.refusal is None
    assert error < FLOAT32_BOUND


@pytest.mark.parametrize(("channels", "groups"), [("8", 3), ("8", 0), ("C", 2)])
def test_groups_of_no_known_size_have_no_fiber(channels: str, groups: int) -> None:
    call = f"y = GroupNormalization<num_groups={groups}>(x, g, b)"
    site = only_site(model(call, f"float[B,{channels}] x, float[8] g, float[8] b"))
    assert site.size == 0
    assert site.fiber.blocks == ()


def test_instance_normalization_is_refused_as_spatial():
    proto = model("y = InstanceNormalization(x, g, b)", "float[B,8,5] x, float[8] g, float[8] b")
    ((site, error),) = replay_error(proto)
    assert site.kind is NormKind.INSTANCE_NORM
    assert site.refusal is not None
    assert site.refusal.code is RefusalCode.SPATIAL_NORM
    assert error < FLOAT32_BOUND


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_of_an_image_of_any_size_are_a_group_norm_of_it(groups: int) -> None:
    ones, zeros = (",".join([number] * groups) for number in "10")
    body = (
        f"s = Constant<value_ints=[0,{groups},-1]>() t = Shape(x) r = Reshape(x, s) "
        f"one = Constant<value=float[{groups}] {{{ones}}}>() "
        f"zero = Constant<value=float[{groups}] {{{zeros}}}>() "
        "i = InstanceNormalization(r, one, zero) n = Reshape(i, t) m = Mul(n, g) y = Add(m, b)"
    )
    site = only_site(model(body, "float[B,8,H,W] x, float[8,1,1] g, float[8,1,1] b"))
    assert (site.kind, site.input.name, site.output.name) == (NormKind.GROUP_NORM, "x", "y")
    assert site.refusal is not None
    assert site.refusal.code is RefusalCode.SPATIAL_NORM


def test_contrib_group_norm_has_its_channels_last():
    call = "y = com.microsoft.GroupNorm<groups=2, activation=0>(x, g, b)"
    site = only_site(model(call, "float[B,3,4,8] x, float[8] g, float[8] b"))
    assert site.form is NormForm.CONTRIB
    assert site.affine_axis == 3
    assert site.size == 48
    assert site.refusal is not None
    with_swish = "y = com.microsoft.GroupNorm<groups=2, activation=1>(x, g, b)"
    assert sites_of(model(with_swish, "float[B,3,4,8] x, float[8] g, float[8] b")) == ()


def test_norms_in_bodies_are_found_after_those_around_them():
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (bool c, float[2,8] x, float[8] g) => (float[2,8] y)
        {
            h = LayerNormalization(x, g)
            y = If(c) <
                then_branch = one () => (float[2,8] a) { a = LayerNormalization(h, g) },
                else_branch = two () => (float[2,8] b) {
                    m = ReduceMean<axes=[-1]>(h)  d = Sub(h, m)  q = Mul(d, d)
                    v = ReduceMean<axes=[-1]>(q)  s = Sqrt(v)  b = Div(d, s)
                }
            >
        }"""
    )
    sites = sites_of(proto)
    assert [site.output.name for site in sites] == ["h", "a", "b"]
    assert [site.form for site in sites] == [NormForm.OP, NormForm.OP, NormForm.DECOMPOSED]


def test_a_scale_of_ones_made_from_the_shape_of_x_is_absent():
    """What the dynamo exporter writes for RMSNorm without a weight at opset 23."""
    body = (
        "s = Shape(x)\ng = ConstantOfShape<value = float[1] {1.0}>(s)\ny = RMSNormalization(x, g)"
    )
    site = only_site(model(body))
    assert site.gamma is None
    assert site.refusal is None


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("h = org.x.Foo (x)", "'org.x.Foo->h' (org.x.Foo)"),
        ("f = org.x.Foo (x)  h = Neg (f)", "'org.x.Foo->f' (org.x.Foo)"),
        ("f = org.x.Foo (x)  e = Neg (f)  h = org.x.Bar (e)", "'org.x.Foo->f' (org.x.Foo)"),
        ("f = org.x.Foo (x)  s = Shape (f)  h = Reshape (x, s)", "'org.x.Foo->f' (org.x.Foo)"),
        ("f = org.x.Foo (x)  h = Tile (x, f)", "'org.x.Foo->f' (org.x.Foo)"),
        ("f = org.x.Foo ()  h = MatMul (x, f)", "'org.x.Foo->f' (org.x.Foo)"),
        (
            "f = org.x.Foo (x)  s = Shape (f)  k = Constant <value = int64[1] {1}> ()"
            "o = Gather (s, k)  t = Concat <axis = 0> (k, o)  h = Reshape (x, t)",
            "'org.x.Foo->f' (org.x.Foo)",
        ),
        ("h = Frobnicate (x)", "'Frobnicate->h' (Frobnicate)"),
        ("h = com.microsoft.Unheard (x)", "'com.microsoft.Unheard->h' (com.microsoft.Unheard)"),
    ],
)
@pytest.mark.parametrize(
    "norm",
    [
        "y = LayerNormalization (h, g)",
        "y = SimplifiedLayerNormalization (h, g)",
        "m = ReduceMean (h, a)  d = Sub (h, m)  q = Mul (d, d)  v = ReduceMean (q, a)"
        "w = Add (v, p)  r = Sqrt (w)  n = Div (d, r)  y = Mul (n, g)",
        "q = Pow (h, two)  v = ReduceMean (q, a)  w = Add (v, p)  r = Sqrt (w)"
        "c = Reciprocal (r)  y = Mul (h, c)",
    ],
)
def test_a_norm_of_unknown_size_names_the_operator_that_hides_it(
    body: str, cause: str, norm: str
) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18, "org.x": 1, "com.microsoft": 1]>'
        "g (float[2, 8] x, float[K] g) => (float[A, B] y)"
        "<int64[1] a = {-1}, float p = {1e-5}, float two = {2.0}>"
        f"{{ {body}  {norm} }}"
    )
    (site,) = onnxfold.inspect(proto)["norms"]
    assert site["reason"]["code"] == "dynamic_fiber"
    told = f"is not known: nothing determines the shape of the result of {cause}"
    assert site["reason"]["sentence"].endswith(told)


def test_a_size_that_the_input_leaves_open_blames_no_operator() -> None:
    body = "h = Neg (x)  y = LayerNormalization (h, g)"
    site = only_site(model(body, "float[2,D] x, float[K] g"))
    assert site.refusal is not None
    assert site.refusal.sentence == "the size of a normalized axis is not known"


_MEAN = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m)"


def test_a_mean_subtracted_in_front_is_of_the_norm() -> None:
    text = f"{_MEAN} y = LayerNormalization(d, g)"
    ((site, error),) = replay_error(model(text, "float[B,3,8] x, float[8] g", opset=17))
    assert (site.kind, site.form) == (NormKind.LAYER_NORM, NormForm.DECOMPOSED)
    assert (site.input.name, [node.op_type for node in site.nodes]) == (
        "x",
        ["ReduceMean", "Sub", "LayerNormalization"],
    )
    assert not site.centred  # the operator would subtract a mean again
    assert error < FLOAT32_BOUND


@pytest.mark.parametrize(
    "text",
    [
        f"{_MEAN} n = LayerNormalization(d, g) y = Add(n, d)",
        f"{_MEAN} n = LayerNormalization(d, g) y = Add(n, m)",
        f"{_MEAN.replace('-1', '1')} y = LayerNormalization(d, g)",
        f"{_MEAN.replace('Sub(x, m)', 'Sub(m, x)')} y = LayerNormalization(d, g)",
        f"z = Neg(x) {_MEAN.replace('Mean<axes=[-1]>(x', 'Mean<axes=[-1]>(z')} "
        "y = LayerNormalization(d, g)",
        f"{_MEAN} y, mean, inverse = LayerNormalization(d, g) n = Neg(inverse)",
    ],
)
def test_another_mean_stays_in_front_and_so_does_one_that_others_read(text: str) -> None:
    site = only_site(model(text, "float[B,3,8] x, float[8] g", opset=17))
    assert site.input.name == "d"


_COLUMN = """c = Constant<value = float[2, 1] {1.0, 2.0}>() s = Constant<value = int64[2] {2, 8}>()
    t = Expand(c, s)"""


@pytest.mark.parametrize(
    ("norm", "refused"),
    [
        ("LayerNormalization(t, g)", True),
        ("LayerNormalization<axis=0>(t, h)", False),
        ("RMSNormalization(t, g)", False),
    ],
)
def test_a_norm_that_subtracts_the_mean_of_equal_constants_is_refused(
    norm: str, refused: bool
) -> None:
    site = only_site(model(f"{_COLUMN} y = {norm}", "float[8] g, float[2,8] h"))
    assert (site.refusal is not None) == refused


def test_a_norm_of_equal_constants_that_is_refused_keeps_its_reason() -> None:
    body = """v = Constant<value = float[1] {1.0}>() s = Constant<value = int64[3] {1, 2, 8}>()
        t = Expand(v, s) y = InstanceNormalization(t, g, b)"""
    site = only_site(model(body, "float[2] g, float[2] b"))
    assert site.refusal is not None
    assert site.refusal.code is RefusalCode.SPATIAL_NORM


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{_MEAN} c = Cast<to=1>(d)", True),
        (f"{_MEAN.replace('-1', '1')} c = Cast<to=1>(d)", False),
        (f"{_MEAN} c = Neg(d)", False),
        ("z = Neg(x) c = Cast<to=1>(z)", False),
        ("c = Cast<to=1>(x)", False),
    ],
)
def test_a_norm_reads_a_cast_of_x_less_its_mean(text: str, found: bool) -> None:
    proto = model(f"{text} y = LayerNormalization(c, g)", "float16[B,3,8] x, float[8] g", opset=17)
    view = infer(ir.from_proto(proto))
    (site,) = find_norms(view)
    assert (cast_of_centred(view, site) is not None) == found
