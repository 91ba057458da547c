"""What the recognizer reads of single values: types, numbers, multiples of t."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.graph import ModelInfo
from onnxfold.norms import NormKind
from onnxfold.norms.second_moments import Moment
from onnxfold.recognition import find_norms
from onnxfold.recognition.algebra.canonical import Canonical, uniform
from onnxfold.recognition.algebra.graph_state import reading
from onnxfold.recognition.algebra.matcher import match_graph
from onnxfold.recognition.algebra.moments import shifted_moment
from onnxfold.shapes import infer
from tests.graphs import graph

X = "double[B,4] x, double[B,4] other"
NUMBERS = {"k": np.array(3.0), "pair": np.array([1.0, 2.0]), "none": np.zeros(0)}
NUMBERS |= {"twos": np.full((2, 2), 2.0)}
SQUARES = "s = Mul(x, x) m = ReduceMean<axes=[-1]>(s) "


def _view(body: str, *, inferred: bool = True) -> ModelInfo:
    model = graph(f"{body} y = Identity(x)", X, "double[B,4] y", NUMBERS, opset=17)
    return infer(model) if inferred else ModelInfo(model)


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        ("v = Neg(x)", -1.0), ("v = Mul(x, k)", 3.0), ("v = Mul(k, x)", 3.0),
        ("v = Identity(x)", 1.0), ("h = Neg(x) v = Neg(h)", 1.0), ("v = Mul(other, k)", None),
        ("v = Neg(other)", None), ("v = Mul(x, other)", None), ("v = Exp(x)", None),
    ],
)  # fmt: skip
def test_a_multiple_of_t_is_read_with_its_factor(body: str, factor: float | None) -> None:
    view = _view(f"{SQUARES} {body}")
    algebra, _ = match_graph(Canonical(view), view.model.graph)
    values = view.by_ref()
    form = reading(algebra, values["v"], values["x"])
    assert (None if form is None else form.a.number) == factor


def test_an_epsilon_of_nothing_is_one_and_a_negative_one_is_none() -> None:
    view = _view(SQUARES)
    algebra, _ = match_graph(Canonical(view), view.model.graph)
    moment = algebra.form(view.by_ref()["m"])
    assert isinstance(moment, Moment)
    shifted = shifted_moment(moment, 0.0)
    assert shifted is not None
    assert shifted.epsilon == 0.0
    assert shifted_moment(moment, -1e-6) is None


@pytest.mark.parametrize(
    ("name", "number"), [("k", 3.0), ("twos", 2.0), ("pair", None), ("none", None)]
)
def test_one_number_fills_a_value_or_none_does(name: str, number: float | None) -> None:
    view = _view(f"v = Identity({name})")
    assert uniform(view, view.model.graph.initializers[name]) == number


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("v = Cast<to=10>(x)", ir.DataType.FLOAT16),
        ("v = elsewhere.Cast<to=10>(x)", ir.DataType.DOUBLE),
        ("v = Shape(x)", ir.DataType.INT64),
        ("v = Mul(x, k)", ir.DataType.DOUBLE),
        ("v = Less(x, k)", ir.DataType.BOOL),
        ("v = Constant<value=float {1.0}>()", ir.DataType.FLOAT),
    ],
)
def test_a_type_that_nobody_declares_is_what_the_operator_gives(
    body: str, dtype: ir.DataType
) -> None:
    view = _view(body, inferred=False)
    value = view.by_ref()["v"]
    assert value.dtype is None
    assert Canonical(view).dtype(value) is dtype


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("v = CastLike(k, x)", 3.0), ("c = CastLike(k, x) v = Mul(c, c)", 9.0),
        ("c = CastLike(k, x) d = Sub(c, k) v = Div(k, d)", None), ("v = Mul(k, x)", None),
        ("c = CastLike(twos, x) v = Mul(c, c)", None),
    ],
)  # fmt: skip
def test_the_number_of_a_scalar_is_computed(body: str, number: float | None) -> None:
    view = _view(body)
    algebra, _ = match_graph(Canonical(view), view.model.graph)
    assert algebra.canonical.number(view.by_ref()["v"]) == number


@pytest.mark.parametrize(
    ("condition", "found"),
    [("Equal(least, most)", True), ("And(same, yes)", True), ("And(same, asked)", False)],
)
def test_a_guard_of_rows_without_spread_is_a_part_of_the_norm(condition: str, found: bool) -> None:
    """Where an input decides as well, the norm is of what the Where gives, without a mean."""
    body = (
        "m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) least = ReduceMin<axes=[-1]>(x) "
        "most = ReduceMax<axes=[-1]>(x) same = Equal(least, most) "
        f"guard = {condition} d = Where(guard, zero, c) q = Mul(d, d) "
        "v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) s = Sqrt(e) y = Div(d, s)"
    )
    made = {"zero": np.array(0.0), "eps": np.array(1e-5), "yes": np.array([True])}
    model = graph(body, "double[B,4] x, bool[1] asked", "double[B,4] y", made, opset=17)
    (site,) = find_norms(infer(model))
    assert (site.kind is NormKind.LAYER_NORM) == found


OWN = (
    "m = ReduceMean<axes=[0,2], keepdims=0>(x) k = ReduceMean<axes=[0,2]>(x) d = Sub(x, k) "
    "q = Mul(d, d) v = ReduceMean<axes=[0,2], keepdims=0>(q) "
    "n = BatchNormalization(x, scale, bias, m, v) y = Identity(n)"
)


@pytest.mark.parametrize(
    ("text", "scale", "bias", "found"),
    [
        (OWN, 1.0, 0.0, True),
        (OWN, 2.0, 0.0, False),
        (OWN, 1.0, 0.5, False),
        (OWN.replace("q = Mul(d, d)", "q = Mul(x, x)"), 1.0, 0.0, False),
        (OWN.replace("x, scale, bias, m, v", "x, scale, bias, v, v"), 1.0, 0.0, False),
        (OWN.replace("x, scale, bias, m, v", "x, scale, bias, m, m"), 1.0, 0.0, False),
        (
            OWN.replace("n = Batch", "h = Neg(m) n = Batch").replace("m, v)", "h, v)"),
            1.0,
            0.0,
            False,
        ),
    ],
)
def test_a_batch_normalization_with_its_own_moments_is_a_norm(
    text: str, scale: float, bias: float, found: bool
) -> None:
    made = {"scale": np.full(3, scale), "bias": np.full(3, bias)}
    model = graph(text, "double[2,3,4] x", "double[2,3,4] y", made, opset=17)
    assert bool(find_norms(infer(model))) == found
