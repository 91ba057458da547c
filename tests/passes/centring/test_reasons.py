"""Which obstacle a norm that stays is told of: one on the way to its input, and what would help."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import graph, weights

_STREAM = "p = MatMul(u, W) h = Add(p, b) n = LayerNormalization<axis=-1>(h, g) "


def _model(body: str, outputs: str = "double[B,6] y") -> onnx.ModelProto:
    constants: dict[str, Any] = weights(W=(6, 6), V=(6, 6), b=(6,), g=(6,), g2=(6,))
    return ir.to_proto(graph(body, "double[B,6] u", outputs, constants, opset=17))


def _reasons(model: onnx.ModelProto, **options: Any) -> dict[str, dict[str, Any]]:
    document = onnxfold.inspect(model, fold="always", **options)
    rows = {**{row["output"]: row["reason"] for row in document["norms"]}}
    return rows | {row["output"]: row["reason"] for row in document["centrings"]}


@pytest.mark.parametrize(
    ("after", "node"),
    [
        ("z = Relu(h) y = MatMul(n, V)", "z"),
        ("h2 = Add(h, u) z = Tanh(h2) y = MatMul(n, V)", "z"),
        ("q = MatMul(n, V) f = Relu(q) h2 = Add(h, f) z = Sigmoid(h2) y = Identity(f)", "z"),
    ],
    ids=["reader", "behind a carrier", "behind a carrier, not the gate"],
)
def test_the_obstacle_is_on_the_way_and_not_after_the_norm(after: str, node: str) -> None:
    model = _model(_STREAM + after, "double[B,6] y, double[B,6] z")
    reason = _reasons(model)["n"]
    assert reason["code"] == "exact_reader"
    assert reason["nodes"][0].endswith(f"->{node}")


def test_what_is_after_the_output_of_a_norm_that_could_fold_is_no_obstacle() -> None:
    after = "q = MatMul(n, V) f = Relu(q) h2 = Add(h, f) y = LayerNormalization<axis=-1>(h2, g2)"
    reasons = _reasons(_model(_STREAM + after))
    assert reasons["n"] is None
    assert reasons["y"]["nodes"] == ["Relu->f"]


@pytest.mark.parametrize("limit", [0, 6 * 6 * 8 - 1, 6 * 6 * 8])
def test_a_weight_that_would_have_to_be_split_is_named(limit: int) -> None:
    model = _model(_STREAM + "y = MatMul(n, V) z = Tanh(W)", "double[B,6] y, double[6,6] z")
    reason = _reasons(model, allow_split=limit)["n"]
    split = limit >= 6 * 6 * 8
    assert split == (reason is None)
    assert split or "; --allow-split 288 would store 'W' twice instead; " in reason["sentence"]


def test_no_split_is_named_where_it_would_not_be_enough() -> None:
    after = "z = Tanh(W) s = Relu(h) y = MatMul(n, V)"
    model = _model(_STREAM + after, "double[B,6] y, double[6,6] z, double[B,6] s")
    assert "--allow-split" not in _reasons(model, allow_split=0)["n"]["sentence"]


@pytest.mark.parametrize(
    ("body", "output", "code"),
    [
        ("r = Relu(u) m = ReduceMean<axes=[-1]>(r) y = Sub(r, m)", "y", "activation"),
        ("r = MatMul(u, W) y = LpNormalization(r)", "y", "not_centred_norm"),
        ("r = Relu(u) y = MeanVarianceNormalization<axes=[1]>(r)", "y", "no_cheaper_form"),
    ],
    ids=["centring", "length", "variance"],
)
def test_every_form_has_a_reason(body: str, output: str, code: str) -> None:
    assert _reasons(_model(body))[output]["code"] == code


def test_a_mean_that_stays_and_a_norm_after_it_have_a_reason_each() -> None:
    body = "p = MatMul(u, W) f = Relu(p) m = ReduceMean<axes=[-1]>(f) d = Sub(f, m) "
    body += "q = MatMul(d, V) h = Sigmoid(q) y = LayerNormalization<axis=-1>(h, g)"
    reasons = _reasons(_model(body))
    assert reasons["d"]["sentence"] == "Relu 'Relu->f' is not linear"
    assert reasons["y"]["nodes"] == ["Sigmoid->h"]


@pytest.mark.parametrize(
    ("body", "value", "code", "nodes"),
    [
        ("a = Relu(p) {} y = Tanh(d)", "d", "activation", ["Relu->a"]),
        ("a = Mul(p, u) {} y = Tanh(d)", "d", "varies_along_fiber", ["Mul->a"]),
        ("a = Identity(u) {} y = Tanh(d)", "d", "graph_input", ["u"]),
        ("a = Identity(p) {} z = Exp(a) y = Add(d, z)", "d", "exact_reader", ["Exp->z"]),
        ("a = Relu(p) {} y = LpNormalization<p=1>(d)", "d", "activation", ["Relu->a"]),
        ("a = Relu(p) {} y = LpNormalization(d)", "y", "not_centred_norm", []),
        ("a = Relu(p) {} y = MeanVarianceNormalization<axes=[1]>(d)", "d", "activation", None),
        ("y = MeanVarianceNormalization<axes=[1]>(p)", "y", "no_cheaper_form", None),
        ("y = LpNormalization(p)", "y", "not_centred_norm", []),
    ],
)  # fmt: skip
def test_means_outside_of_norms_and_norms_of_other_kinds_have_reasons(
    body: str, value: str, code: str, nodes: list[str] | None
) -> None:
    mean = "m = ReduceMean<axes=[-1]>(a) d = Sub(a, m)"
    reason = _reasons(_model(f"p = MatMul(u, W) {body.format(mean)}"))[value]
    assert reason["code"] == code
    assert nodes is None or reason["nodes"] == nodes
    assert "inserted" not in reason["sentence"]  # which is what such a mean is
