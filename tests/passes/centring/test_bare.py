"""x - mean(x) outside of norms: it goes into the layer before it, whatever reads it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold import Verification, VerificationError
from onnxfold.passes.centring.plan import Fold
from onnxfold.passes.prepare.means_of_summands import subtract_from_summands
from onnxfold.shapes import infer
from onnxfold.target import Target
from tests.graphs import graph, weights
from tests.lanes import some
from tests.soundness.folding import evaluate, fold, forced, relative_error

# float64 throughout: some hundred roundings of 2^-53.
BOUND = 1e-12
_CENTRED = "m = ReduceMean<axes=[-1]>(a) d = Sub(a, m)"
_READERS = {
    "dueling": f"v = MatMul(u, V) {_CENTRED} y = Add(v, d)",
    "dueling in a row": "v = MatMul(u, V) s = Add(v, a) m = ReduceMean<axes=[-1]>(a) y = Sub(s, m)",
    "the mean first": "v = MatMul(u, V) m = ReduceMean<axes=[-1]>(a) s = Sub(v, m) y = Add(s, a)",
    "the mean last": "v = MatMul(u, V) m = ReduceMean<axes=[-1]>(a) s = Sub(m, a) y = Sub(v, s)",
    "negative": "m = ReduceMean<axes=[-1]>(a) s = Sub(m, a) n = Neg(s) y = Sub(n, two)",
    "unsqueezed": "m = ReduceMean<axes=[1], keepdims=0>(a) n = Unsqueeze(m, one) y = Sub(a, n)",
    "expanded": "v = MatMul(u, V) s = Add(v, a) m = ReduceMean<axes=[1], keepdims=0>(a) "
    "n = Unsqueeze(m, one) z = Shape(a) e = Expand(n, z) y = Sub(s, e)",
    "a sum over 5": "m = ReduceSum(a, one) n = Div(m, five) y = Sub(a, n)",
    "a sum times a fifth": "m = ReduceSum(a, one) n = Mul(fifth, m) y = Sub(a, n)",
    "advantage first": "v = MatMul(u, V) s = Add(a, v) m = ReduceMean<axes=[-1]>(a) y = Sub(s, m)",
    "activation": f"{_CENTRED} y = Tanh(d)",
    "length 2": f"{_CENTRED} y = LpNormalization<axis=-1, p=2>(d)",
    "length 1": f"{_CENTRED} s = ReduceL1<axes=[-1]>(d) y = Div(d, s)",
    "mean and variance": f"{_CENTRED} y = MeanVarianceNormalization<axes=[1]>(d)",
    "two steps": f"{_CENTRED} q = Abs(d) s = ReduceMax<axes=[-1]>(q) y = Div(d, s)",
    "output": "m = ReduceMean<axes=[-1]>(a) y = Sub(a, m)",
}


def _model(after: str, outputs: str = "double[B,5] y") -> onnx.ModelProto:
    body = f"p = MatMul(u, W) a = Add(p, b) {after}"
    constants: dict[str, Any] = weights(W=(6, 5), b=(5,), V=(6, 1), U=(5, 5))
    numbers = {"one": np.int64([1]), "two": 2.0, "five": 5.0, "fifth": 0.2, "fourth": 0.25}
    constants |= {name: np.asarray(number) for name, number in numbers.items() if name in after}
    return ir.to_proto(graph(body, "double[B,6] u", outputs, constants, opset=17))


def _rows() -> dict[str, Any]:
    u = np.random.default_rng(0).standard_normal((6, 6))
    u[1], u[2], u[3] = 3.0, u[2] + 1e3, u[3] * 1e6
    return {"u": u}


@pytest.mark.parametrize(("reader", "target"), some(product(_READERS, Target), each=2))
def test_a_mean_that_is_subtracted_after_a_layer_goes_into_it(reader: str, target: Target) -> None:
    model = _model(_READERS[reader])
    folded = fold(model, target)
    assert len(folded.plan.centrings) == 1
    assert {weight.value for weight in folded.plan.weights} == {"W", "b"}
    assert not folded.plan.folds
    assert folded.proof.passed
    operators = {node.op_type for node in folded.model.graph.node}
    assert not {"ReduceMean", "ReduceSum", "Center"} & operators
    assert "Sub" not in operators or reader in ("negative", "the mean last")
    assert relative_error(evaluate(model, _rows()), evaluate(folded.model, _rows())) < BOUND


@pytest.mark.parametrize("reader", _READERS)
def test_a_second_run_changes_nothing(reader: str) -> None:
    once = onnxfold.optimize(_model(_READERS[reader]), check=0)
    assert once.changed
    assert not onnxfold.optimize(once.model, check=0).changed


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (f"{_CENTRED} y = Tanh(d) z = Tanh(a)", "exact_reader"),
        (f"{_CENTRED} y = Tanh(d) z = MatMul(a, U)", "exact_reader"),
        (f"{_CENTRED} y = Tanh(d) z = Tanh(m)", "exact_reader"),
        (f"{_CENTRED} y = Tanh(d) z = Identity(a)", "graph_output"),
    ],
    ids=["activation", "layer", "mean", "output"],
)
def test_it_stays_where_somebody_sees_the_mean(after: str, code: str) -> None:
    size = 1 if "Tanh(m)" in after else 5
    model = _model(after, f"double[B,5] y, double[B,{size}] z")
    document = onnxfold.inspect(model)
    (row,) = document["centrings"]
    assert not row["folded"]
    assert row["reason"]["code"] == code
    plan = fold(_model(_READERS["activation"])).plan
    wrong = forced(model, plan)
    assert not wrong.proof.passed
    assert relative_error(evaluate(model, _rows()), evaluate(wrong.model, _rows())) > 1e-3


def test_a_mean_of_an_activation_stays_and_may_not_be_dropped() -> None:
    model = _model(f"r = Relu(a) {_CENTRED.replace('(a', '(r')} y = Tanh(d)")
    (row,) = onnxfold.inspect(model)["centrings"]
    assert row["reason"]["code"] == "activation"
    plan = replace(fold(model).plan, centrings=(Fold("Sub", "d"),))
    wrong = forced(model, plan)
    assert not wrong.proof.passed
    assert relative_error(evaluate(model, _rows()), evaluate(wrong.model, _rows())) > 1e-3


@pytest.mark.parametrize(
    "after",
    [
        "m = ReduceSum(a, one) n = Mul(fourth, m) y = Sub(a, n)",
        "m = ReduceMean<axes=[-1]>(a) y = Add(a, m)",
        "m = ReduceMean<axes=[-1]>(a) s = Sub(a, m) t = Add(m, s) y = Identity(t)",
        "v = MatMul(u, V) m = ReduceMean<axes=[-1]>(v) y = Sub(a, m)",
    ],
    ids=["a quarter of five", "added", "read twice", "of another"],
)
def test_what_is_no_mean_of_a_summand_is_not_subtracted_from_it(after: str) -> None:
    model = _model(after)
    folded = fold(model)
    assert not folded.plan.centrings
    assert relative_error(evaluate(model, _rows()), evaluate(folded.model, _rows())) < BOUND


@pytest.mark.parametrize(("reader", "count"), [("output", 0), ("dueling in a row", 1)])
def test_a_mean_that_is_subtracted_at_once_is_left_as_it_is(reader: str, count: int) -> None:
    view = infer(ir.from_proto(_model(_READERS[reader])))
    before = list(view.nodes())
    assert subtract_from_summands(view) == count
    assert (before == list(view.nodes())) == (count == 0)


def test_a_sum_whose_mean_is_subtracted_later_may_be_one_itself() -> None:
    """Of (v + a) - mean(a) = z, (z + w) - mean(z) is rewritten as well, at once."""
    first = "v = MatMul(u, V) s = Add(v, a) m = ReduceMean<axes=[-1]>(a) z = Sub(s, m) "
    model = _model(f"{first} w = Tanh(u) p2 = MatMul(w, V) t = Add(z, p2) "
                   "m2 = ReduceMean<axes=[-1]>(z) y = Sub(t, m2)")  # fmt: skip
    assert len(onnxfold.inspect(model)["centrings"]) == 2
    folded = fold(model)
    assert folded.proof.passed
    assert relative_error(evaluate(model, _rows()), evaluate(folded.model, _rows())) < BOUND
    once = onnxfold.optimize(model, check=0)
    assert not onnxfold.optimize(once.model, check=0).changed


def test_a_mean_of_rows_is_not_expanded_over_columns() -> None:
    """[5] as [5, 5] repeats along the first axis, where each row has its own mean."""
    after = "m = ReduceMean<axes=[1], keepdims=0>(a) s = Shape(a) n = Expand(m, s) y = Sub(a, n)"
    model = _model(after)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 5
    assert not onnxfold.inspect(model)["centrings"]
    rows = {"u": _rows()["u"][:5]}
    folded = fold(model)
    assert relative_error(evaluate(model, rows), evaluate(folded.model, rows)) < BOUND


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_layer_norm_of_it_folds_with_it(target: str) -> None:
    """LN(a - mean(a)) = LN(a), by an operator that would subtract the mean again."""
    model = _model(f"{_CENTRED} y = LayerNormalization<axis=-1>(d, b)")
    once = onnxfold.optimize(model, target=target, fold="always")
    assert once.plan is not None
    assert len(once.plan.folds) == 1
    operators = [node.op_type for node in once.model.graph.node]
    assert not {"Sub", "LayerNormalization", "LayerNormAffine"} & set(operators)
    assert not onnxfold.optimize(once.model, target=target, fold="always").changed


def test_they_are_counted_apart_from_norms() -> None:
    after = f"n = LayerNormalization<axis=-1>(a, b) {_CENTRED} y = Add(n, d)"
    summary = onnxfold.inspect(_model(after), fold="always")["summary"]
    assert (summary["norms"], summary["folded"]) == (1, 1)
    assert (summary["centrings"], summary["folded_centrings"]) == (1, 1)


def test_one_is_excluded_by_its_name() -> None:
    document = onnxfold.inspect(_model(_READERS["activation"]), exclude="Sub")
    (row,) = document["centrings"]
    assert row["reason"]["code"] == "excluded"


def test_convert_leaves_it() -> None:
    model = _model(_READERS["activation"])
    assert not onnxfold.convert(model, to="rms", check=0).changed


_SPELLED = (
    "m = ReduceMean<axes=[1]>(a) d = Sub(a, m) q = Mul(d, d) v = ReduceMean<axes=[1]>(q) "
    "s = Sqrt(v) e = Add(s, tiny) y = Div(d, e)"
)


@pytest.mark.parametrize(
    ("after", "folds"),
    [(_SPELLED, 1), ("y = MeanVarianceNormalization<axes=[1]>(a)", 0)],
    ids=["spelled", "operator"],
)
def test_variances_over_channels_are_those_of_a_norm(after: str, folds: int) -> None:
    """Only the spelling loses its mean; the operator has no form without one, and says so."""
    constants: dict[str, Any] = weights(W=(5, 6, 1), b=(5,)) | {"tiny": np.array(1e-9)}
    shapes = "double[B,6,4] u", "double[B,5,4] y"
    model = ir.to_proto(graph(f"a = Conv(u, W, b) {after}", *shapes, constants, opset=17))
    document = onnxfold.inspect(model, fold="always")
    (norm,) = document["norms"]
    assert document["summary"]["folded"] == folds
    assert folds or norm["reason"]["code"] == "no_cheaper_form"
    assert not document["centrings"]


def test_means_stay_where_the_check_fails_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads x - mean(x) may amplify its roundings, as a Softmax of large numbers does."""
    body = (
        "h = MatMul(x, W) n = LayerNormalization<axis=-1>(h, gamma, beta) a = MatMul(n, K) "
        f"{_CENTRED} y = Softmax<axis=-1>(d)"
    )
    made = weights(W=(6, 6), gamma=(6,), beta=(6,), K=(6, 5))
    model = graph(body, "double[B,6] x", "double[B,5] y", made, opset=17)
    plain = onnxfold.optimize(model)
    assert (len(plain.plan.folds), len(plain.plan.centrings)) == (1, 1)

    def check(*given: Any) -> Verification:
        if given[2].plan.centrings:
            raise VerificationError("output 'y' errs")
        return checked(*given)

    module = sys.modules["onnxfold.pipeline.run"]  # whose name its function has
    checked = module.check
    monkeypatch.setattr(module, "check", check)
    kept = onnxfold.optimize(model)
    assert (len(kept.plan.folds), len(kept.plan.centrings)) == (1, 0)
    assert [left["name"] for left in kept.report["left_out"]] == ["means outside of norms"]
    (mean,) = kept.report["inspect"]["centrings"]
    assert mean["reason"]["code"] == "not_proved"
