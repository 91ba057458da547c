"""Forms that exporters and optimizers write and no fixture holds, by hand: one site each.

Sources: torch.autocast and Apex (where the Casts stand), Gemma and Nemotron through jax2onnx (a
scale of 1 + w), ONNX Runtime's optimizer (what it leaves half done), OpenVINO and Paddle (Pow).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.norms import EpsilonMode, NormForm, NormKind
from tests.recognition.replay import FLOAT32_BOUND, model, random_feeds, replay, sites_of, values_of

# Half precision: 2^-11 per rounding, about four of them on results of up to 4.
HALF_BOUND = 4 * 4 * 2.0**-11
X = "float[B,3,8] x"
HALF = "float16[B,3,8] x"
NUMBERS = """two = Constant<value = float {2.0}>()
half = Constant<value = float {0.5}>()  back = Constant<value = float {-1.0}>()
one = Constant<value = float {1.0}>()  e = Constant<value = float {1e-5}>()
tiny = Constant<value = float {1e-12}>()  huge = Constant<value = float {1e12}>()
"""
MEAN = "u = ReduceMean<axes=[-1]>(x)\nd = Sub(x, u)\n"
SPREAD = "q = Mul(d, d)\nv = ReduceMean<axes=[-1]>(q)\nve = Add(v, e)\ns = Sqrt(ve)\n"
SQUARES = "q = Mul(x, x)\nv = ReduceMean<axes=[-1]>(q)\nve = Add(v, e)\ns = Sqrt(ve)\n"
WIDE_SPREAD = (
    "q = Pow(d, two)\nv = ReduceMean<axes=[-1]>(q)\nve = Add(v, e)\ns = Sqrt(ve)\nn = Div(d, s)\n"
)
LN, RMS, L2 = NormKind.LAYER_NORM, NormKind.RMS_NORM, NormKind.L2_NORM


@dataclass(frozen=True)
class Form:
    kind: NormKind
    body: str
    inputs: str = X
    outputs: str = "float[] y"
    gamma: bool = True
    mode: EpsilonMode = EpsilonMode.INSIDE
    epsilon: float = 1e-5
    opset: int = 17
    rounds: bool = False  # the quotient, before gamma
    computed: ir.DataType = ir.DataType.FLOAT


FORMS = {
    "1 + w as a node": Form(LN, MEAN + SPREAD + "g1 = Add(one, g)\nn = Div(d, s)\ny = Mul(g1, n)"),
    "1 + w of an RMS norm": Form(RMS, SQUARES + "g1 = Add(g, one)\nn = Div(x, s)\ny = Mul(n, g1)"),
    "Pow(s, -1)": Form(LN, MEAN + SPREAD + "r = Pow(s, back)\nn = Mul(d, r)\ny = Mul(n, g)"),
    "Pow(v, -0.5)": Form(
        RMS,
        "q = Pow(x, two)\nv = ReduceMean<axes=[-1]>(q)\nve = Add(v, e)\nm = Neg(half)\n"
        "r = Pow(ve, m)\nn = Mul(x, r)\ny = Mul(n, g)",
    ),
    "the mean in half, the rest in float (torch, fp16)": Form(
        LN,
        "u = ReduceMean<axes=[-1]>(x)\nd0 = Sub(x, u)\nd = Cast<to=1>(d0)\n"
        + WIDE_SPREAD
        + "n16 = Cast<to=10>(n)\ng16 = Cast<to=10>(g)\ny = Mul(n16, g16)",
        HALF,
        "float16[] y",
        rounds=True,
    ),
    "the same and back to float (autocast)": Form(
        LN,
        "u = ReduceMean<axes=[-1]>(x)\nd0 = Sub(x, u)\nd = Cast<to=1>(d0)\n"
        + WIDE_SPREAD
        + "n16 = Cast<to=10>(n)\nn32 = Cast<to=1>(n16)\ny = Mul(n32, g)",
        HALF,
    ),
    "all of it in float (Apex)": Form(
        LN,
        "w = Cast<to=1>(x)\nu = ReduceMean<axes=[-1]>(w)\nd = Sub(w, u)\n"
        + WIDE_SPREAD
        + "m = Mul(n, g)\ny = Cast<to=10>(m)",
        HALF,
        "float16[] y",
    ),
    "one Cast for the square, one for the product (T5)": Form(
        RMS,
        "w1 = Cast<to=1>(x)\nw2 = Cast<to=1>(x)\nq = Pow(w1, two)\n"
        "v = ReduceMean<axes=[-1]>(q)\nve = Add(v, e)\ns = Sqrt(ve)\nr = Div(one, s)\n"
        "n = Mul(w2, r)\nn16 = Cast<to=10>(n)\ng16 = Cast<to=10>(g)\ny = Mul(g16, n16)",
        HALF,
        "float16[] y",
        rounds=True,
    ),
    "a bound on the reciprocal": Form(
        L2,
        "q = Mul(x, x)\na = Constant<value_ints=[-1]>()\nt = ReduceSum(q, a)\ns = Sqrt(t)\n"
        "r = Reciprocal(s)\nlow = Min(r, huge)\ny = Mul(x, low)",
        gamma=False,
        mode=EpsilonMode.MAX_OUTSIDE,
        epsilon=1e-12,
    ),
    "a bound in half precision that rounds to zero": Form(
        L2,
        "l = ReduceL2<axes=[-1], keepdims=1>(x)\nt16 = Cast<to=10>(tiny)\nc = Clip(l, t16)\n"
        "sh = Shape(x)\nce = Expand(c, sh)\ny = Div(x, ce)",
        HALF,
        "float16[] y",
        gamma=False,
        epsilon=0.0,
        computed=ir.DataType.FLOAT16,
    ),
    "roots and squares as powers, and Abs": Form(
        L2,
        "p = Abs(x)\nq = Pow(p, two)\na = Constant<value_ints=[-1]>()\nt = ReduceSum(q, a)\n"
        "s = Pow(t, half)\nm = Max(s, tiny)\ny = Div(x, m)",
        gamma=False,
        mode=EpsilonMode.MAX_OUTSIDE,
        epsilon=1e-12,
    ),
    "the sum of squares times a width to the power -1/2": Form(
        RMS,
        "l = ReduceL2<axes=[-1], keepdims=1>(x)\nk = Constant<value = float {0.35355338}>()\n"
        "s0 = Mul(l, k)\ns = Add(s0, e)\nn = Div(x, s)\ny = Mul(n, g)",
        mode=EpsilonMode.OUTSIDE,
    ),
    "what ONNX Runtime leaves of a norm without bias": Form(
        LN, MEAN + "y = SimplifiedLayerNormalization<axis=-1, epsilon=1e-5>(d, g)"
    ),
    "gamma as the operand of Identity": Form(
        LN, MEAN + SPREAD + "gi = Identity(g)\nn = Div(d, s)\ny = Mul(n, gi)"
    ),
    "gamma that is unsqueezed": Form(
        LN,
        MEAN + SPREAD + "k = Constant<value_ints=[0]>()\ngu = Unsqueeze(g, k)\n"
        "n = Div(d, s)\ny = Mul(n, gu)",
    ),
    "the same difference twice (old torch)": Form(
        LN, MEAN + "d2 = Sub(x, u)\n" + SPREAD + "n = Div(d2, s)\ny = Mul(n, g)"
    ),
    "two differences that make the square": Form(
        LN,
        MEAN
        + "d2 = Sub(x, u)\n"
        + SPREAD.replace("d, d", "d, d2")
        + "n = Div(d, s)\ny = Mul(n, g)",
    ),
    "scaled by a number that is one (Paddle)": Form(
        RMS,
        "q = Pow(x, two)\nv0 = ReduceMean<axes=[-1]>(q)\nv1 = Identity(v0)\nv2 = Mul(v1, one)\n"
        "ve = Add(v2, e)\ns0 = Identity(ve)\ns = Sqrt(s0)\nr = Reciprocal(s)\nri = Identity(r)\n"
        "n = Mul(x, ri)\nni = Identity(n)\ny = Mul(ni, g)",
    ),
}


def _constants(form: Form) -> onnx.ModelProto:
    inputs = f"{form.inputs}, float[8] g" if form.gamma else form.inputs
    proto = model(NUMBERS + form.body, inputs, form.outputs, opset=form.opset)
    if form.gamma:
        scale = np.random.default_rng(1).standard_normal(8).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(scale, "g"))
        proto.graph.input.pop()
    return proto


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_site_that_replays(form: Form) -> None:
    proto = _constants(form)
    sites = sites_of(proto)
    assert len(sites) == 1
    (site,) = sites
    assert (site.kind, site.form) == (form.kind, NormForm.DECOMPOSED)
    assert site.fiber.axes == (2,)
    assert site.epsilon_mode is form.mode
    assert np.isclose(site.epsilon, form.epsilon, rtol=1e-6, atol=0)
    values = values_of(proto, random_feeds(proto))
    y, expected = replay(site, values), values[site.output.name or ""].astype(np.float64)
    half = values["x"].dtype == np.float16
    assert site.rounds_before_affine is form.rounds
    assert site.compute_dtype is form.computed
    assert np.max(np.abs(y - expected)) < (HALF_BOUND if half else FLOAT32_BOUND)
    if site.output.name != "y":  # gamma that was rounded to another type stays behind
        assert half


def test_a_layer_norm_of_mixed_types_does_not_stop_the_others() -> None:
    """autocast from opset 17 on: x in half, gamma in float, which no runtime takes."""
    proto = _constants(
        Form(
            LN,
            "z = LayerNormalization<axis=-1>(x, g)\nw = Cast<to=1>(x)\n"
            "y = LayerNormalization<axis=-1>(w, g)",
            HALF,
            "float16[] z, float[] y",
        )
    )
    assert "y" in {site.output.name for site in sites_of(proto)}
