"""What the walker relates by twins, and where it tests, one decision at a time."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.proof import Certificate, prove
from onnxfold.shapes import infer
from tests.graphs import graph, weights

BODY = """<ir_version: 8, opset_import: ["": 18]>
g (double[B,4] x, bool c) => (double[B,4] y) {{
  y = If(c) <
    then_branch = t () => (double[B,4] p) {{ {then} }},
    else_branch = e () => (double[B,4] q) {{ q = Neg(x) }}>
}}"""


def _views(*bodies: str) -> list[ModelInfo]:
    texts = (BODY.format(then=body) for body in bodies)
    return [ModelInfo(ir.from_proto(onnx.parser.parse_model(text))) for text in texts]


def test_a_norm_that_no_test_can_tell_counts_by_its_twin() -> None:
    """What an If gives is never tested; only constants are tested for the count."""
    proof = prove(*_views("p = Exp(x)", "p = Exp(x)"), Certificate(folded=("y",)))
    assert proof.passed
    assert proof.folded_norms == 1


def test_an_output_of_a_body_may_be_what_another_value_was() -> None:
    """Outputs of a body are paired by place: a, untestable, corresponds to its copy."""
    before, after = _views("a = RandomNormalLike(x) p = Identity(a)", "p = RandomNormalLike(x)")
    body = next(graph for graph in after.graphs if graph.name == "t")
    body.outputs[0].name = "a"
    assert prove(before, ModelInfo(after.model), Certificate()).passed
    body[0].op_type = "RandomUniformLike"
    assert not prove(before, ModelInfo(after.model), Certificate()).passed


def _graph(body: str, x: str = "double[B,4] x") -> ModelInfo:
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    g ({x}) => (double[] y) <int64[1] far = {{5}}, int64[1] end = {{9}}> {{ {body} }}"""
    return infer(ir.from_proto(onnx.parser.parse_model(text)))


def test_what_comes_out_empty_at_small_sizes_alone_proves_nothing() -> None:
    """No batch that is drawn has five rows, so that two functions agree of none."""
    models = _graph("y = Slice(x, far, end)"), _graph("n = Neg(x) y = Slice(n, far, end)")
    assert not prove(*models, Certificate()).passed


def test_what_is_empty_in_the_model_is_equal() -> None:
    empty = "double[0,4] x"
    models = _graph("y = Exp(x)", empty), _graph("n = Neg(x) m = Neg(n) y = Exp(m)", empty)
    assert prove(*models, Certificate()).passed


def test_a_weight_that_an_unknown_operator_makes_of_constants_is_centred_in_a_session() -> None:
    """Its numbers cannot be computed here, so that it may hold any, like an input."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "other": 1]>
        g (float[1,500,8] x, float[8] gamma) => (float[1,500,8] y)
        <float[8,8] w, int8[1] code = {3}> {
            w = other.Dequantize(code)  h = MatMul(x, w)  y = LayerNormalization(h, gamma) }"""
    )
    made = onnxfold.optimize(model, check=0)
    assert "left_out" not in made.report
    assert [norm["action"] for norm in made.report["inspect"]["norms"]] == ["rms"]


def test_what_fits_tensors_of_the_sizes_of_the_model_alone_is_tested_at_them() -> None:
    """No smaller number of channels is a multiple of the square of the block, which is 256."""
    x, turn = "double[1,512,16,16] x", "DepthToSpace<blocksize = 16>"
    models = _graph(f"n = Neg(x) y = {turn}(n)", x), _graph(f"d = {turn}(x) y = Neg(d)", x)
    assert prove(*models, Certificate()).passed


def test_floats_that_are_computed_of_sizes_are_not_drawn() -> None:
    """As the scales of a Resize, which may not be any numbers, however far they were computed."""
    far = " ".join(f"r{n + 1} = Abs(r{n})" for n in range(20))
    scales = f"sizes = Shape(x) f = Cast<to=1>(sizes) r0 = Div(f, f) {far} scales = Abs(r20)"
    models = (
        _graph(f"{scales} n = Neg(x) y = Resize(n, , scales)"),
        _graph(f"{scales} r = Resize(x, , scales) y = Neg(r)"),
    )
    assert prove(*models, Certificate()).passed


def test_the_reason_names_the_node_and_what_it_reads_that_has_changed() -> None:
    body = "m = MatMul(x, W) y = Exp(m)"
    before, after = (
        infer(graph(body, "double[B,4] x", "double[B,4] y", {"W": np.roll(np.eye(4), turn, 0)}))
        for turn in (0, 1)
    )
    assert prove(before, after, Certificate()).failures == (
        "output 'y' could not be proved equal: node 'MatMul->m', which reads the changed 'W'",
    )


@pytest.mark.parametrize("wrong", [None, "epsilon", "centring"])
def test_a_norm_by_two_moments_of_what_was_centred_is_proved_from_before_its_centring(
    wrong: str | None,
) -> None:
    """The inverse root has a new name; its counterpart is derived from x, not from x - mean."""
    head = "h = MatMul(x, W) m = ReduceMean<axes=[-1]>(h) "
    old = (
        "d = Sub(h, m) s = Mul(h, h) q = ReduceMean<axes=[-1]>(s) mm = Mul(m, m) v = Sub(q, mm) "
        "a = Add(v, e) r = Sqrt(a) i = Div(one, r) k = Mul(i, d) y = Mul(k, gamma)"
    )
    centred = "Identity(h)" if wrong == "centring" else "Sub(h, m)"
    new = (
        f"d2 = {centred} s2 = Mul(d2, d2) q2 = ReduceMean<axes=[-1]>(s2) a2 = Add(q2, e) "
        "r2 = Sqrt(a2) i2 = Reciprocal(r2) k2 = Mul(i2, d2) y = Mul(k2, gamma)"
    )
    made = weights(W=(4, 4), gamma=(4,)) | {"one": np.array(1.0)}
    numbers = (1e-3, 1.1e-3 if wrong == "epsilon" else 1e-3)
    models = (
        infer(graph(head + body, "double[B,4] x", "double[B,4] y",
                    made | {"e": np.array(number)}, opset=17))
        for body, number in zip((old, new), numbers, strict=True)
    )  # fmt: skip
    fiber = Fiber((AxisBlock(1, 1, 4, 1),))
    proof = prove(*models, Certificate(centred=(("h", fiber),), folded=("y",)))
    assert proof.passed == (wrong is None)


MOMENTS = (
    "m{n} = ReduceMean<axes=[-1]>(h) d{n} = Sub(h, m{n}) s{n} = Mul(h, h) "
    "q{n} = ReduceMean<axes=[-1]>(s{n}) p{n} = ReduceMean<axes=[-1]>(h) o{n} = Mul(p{n}, p{n}) "
    "v{n} = Sub(q{n}, {square}) c{n} = Clip(v{n}, zero) a{n} = Add(c{n}, e) r{n} = Sqrt(a{n}) "
    "y{n} = Div(d{n}, r{n}) t{n} = Mul(y{n}, l{n}) "
)


@pytest.mark.parametrize("norms", [1, 7])
@pytest.mark.parametrize("square", ["o{n}", "zero"])
def test_norms_by_two_moments_that_stay_do_not_see_a_shift(norms: int, square: str) -> None:
    """Moments are single numbers per row, of which a shift along the row says nothing.

    Seven norms have more unknown moments than a proof that fails is given.
    """
    parts = "".join(
        MOMENTS.replace("{square}", square).replace("{n}", f"{n}") for n in range(norms)
    )
    body = f"h = MatMul(x, W) {parts} y = Sum({', '.join(f't{n}' for n in range(norms))})"
    made = weights(W=(4, 4), **{f"l{n}": (4,) for n in range(norms)})
    made |= {"e": np.array(1e-3), "zero": np.array(0.0)}
    views = (
        infer(graph(body, "double[B,4] x", "double[B,4] y", made | {"W": W}, opset=17))
        for W in (made["W"], made["W"] - made["W"].mean(axis=1, keepdims=True))
    )
    fiber = Fiber((AxisBlock(1, 1, 4, 1),))
    proof = prove(*views, Certificate(centred=(("W", fiber), ("h", fiber))))
    assert proof.passed == (square != "zero")
