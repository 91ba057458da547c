"""Constant expressions that products and sums read are stored, if all runtimes have their bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.passes.prepare.working_copy import prepare
from tests.graphs import graph, weights
from tests.passes.affine.affine_graphs import error

_SHAPE = "double[B,4,6]"
_GEMM = ["Reshape", "Gemm", "Reshape"]


def _prepared(body: str) -> tuple[ir.Model, ir.Model]:
    made = weights(g=(6,), h=(6,), W=(6, 6))
    made |= {"one": np.array(1.0), "taken": np.ones(6), "k": np.arange(3.0)}
    made |= {"rows": np.array([-1, 6]), "back": np.array([-1, 4, 6])}
    kept = {name: made[name] for name in made if name in body}
    model = graph(body, f"{_SHAPE} x", f"{_SHAPE} y", kept, opset=17)
    return model, prepare(model).model


@pytest.mark.parametrize(
    ("body", "readers"),
    [
        ("o = Add(one, g) y = Mul(x, o)", ["Mul"]),
        ("o = Sqrt(one) p = Div(g, o) q = Neg(p) y = Add(q, x)", ["Add"]),
        ("c = Constant<value_float=2.0>() d = Cast<to=11>(c) o = Sub(g, d) y = Mul(o, x)", ["Mul"]),
        ("t = Reshape(x, rows) o = Neg(g) s = Gemm(t, W, o) y = Reshape(s, back)", _GEMM),
        (
            "t = Reshape(x, rows) o = Concat<axis=0>(k, k) s = Gemm(t, W, o) y = Reshape(s, back)",
            _GEMM,
        ),
        ("o = Add(one, g) p = Mul(x, o) z = Max(x, o) y = Add(p, z)", ["Mul", "Max", "Add"]),
        ("o = Mul(g, h) p = Sub(o, one) t = Mul(x, p) y = Add(t, o)", ["Mul", "Add"]),
    ],
)
def test_an_expression_is_one_weight(body: str, readers: list[str]) -> None:
    model, made = _prepared(body)
    assert [node.op_type for node in made.graph] == readers
    # The same roundings in another place: none differs.
    assert error(model, made) == 0


@pytest.mark.parametrize(
    "body",
    [
        "o = Exp(g) y = Mul(x, o)",  # for which libraries differ by a rounding
        "o = Add(one, W) y = MatMul(x, o)",
        "o = Add(one, g) p = Add(o, h) y = Sub(x, p)",
    ],
)
def test_other_expressions_stay(body: str) -> None:
    model, made = _prepared(body)
    assert [node.op_type for node in made.graph] == [node.op_type for node in model.graph]
    assert set(made.graph.initializers) == set(model.graph.initializers)


def test_the_name_of_another_value_is_not_taken() -> None:
    constants = {"one": np.array(1.0), "g": np.ones(6)}
    model = graph("o = Add(one, g) y = Mul(x, o)", f"{_SHAPE} x", f"{_SHAPE} y", constants)
    taken = ir.Value(name="o.folded", const_value=ir.tensor(np.ones(6)))
    model.graph.register_initializer(taken)
    assert len(list(prepare(model).model.graph)) == 2
