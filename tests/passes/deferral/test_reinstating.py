"""Deferred norms taken back: `--defer off` on a deferred model, against the model as it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.undefer import FoundDeferred, ReinstatingPlan, apply, decide
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.proofs import of_reinstating as prove
from tests.graphs import graph, weights
from tests.lanes import some
from tests.passes.affine.affine_graphs import error
from tests.passes.deferral.deferral_graphs import BODIES, rms_graph, rotary
from tests.passes.deferral.test_layer_norms import layer_norm_model

RECIPES = Path(__file__).parents[2] / "recipes"
BOUND = 1e-12  # float64 throughout
MODELS = {
    **{name: body[0] for name, body in BODIES.items()},
    "tables": rotary,
    "a LayerNorm": lambda _: layer_norm_model(),
}


def _operators(model: ir.Model) -> Counter[str]:
    """Count the operators.

    A product with a reciprocal counts as a quotient, and axes are not operators. Identity is not
    counted either, because it disappears when something changes.
    """
    left_out = {"Constant", "Identity"}
    counts = Counter(node.op_type for node in model.graph if node.op_type not in left_out)
    inverses = counts.pop("Reciprocal", 0)
    counts.update(Div=inverses, Mul=-inverses)
    return counts


@pytest.mark.parametrize(("name", "opset"), list(zip(MODELS, cycle((13, 18)))))
def test_a_deferral_is_taken_back(name: str, opset: int) -> None:
    model = MODELS[name](18 if name == "tables" else opset)
    deferred = onnxfold.optimize(model, defer="all", defer_means=True, check=0)
    back = onnxfold.optimize(deferred.model, check=0)
    assert "left_out" not in back.report
    (found,) = back.report["inspect"]["deferred_before"]
    assert found["action"] == "reinstated"
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    assert _operators(back.model) == _operators(onnxfold.optimize(model, check=0).model)
    assert error(model, back.model) < BOUND
    again = onnxfold.optimize(back.model, check=0)
    assert not again.changed


@pytest.mark.parametrize("name", some(["gpt2", "gemma2-small", "swin-t"], each=3))
def test_recipes_get_all_their_norms_back(name: str) -> None:
    """Merged rows and biases, norms that cancel, tables, LayerNorms with their mean."""
    model = ir.load(RECIPES / f"{name}.onnx")
    plain = onnxfold.inspect(onnxfold.optimize(model, check=0).model)
    deferred = onnxfold.optimize(model, defer="all", defer_means=True, check=0)
    back = onnxfold.optimize(deferred.model, check=0)
    assert "left_out" not in back.report
    summary = back.report["inspect"]["summary"]
    assert summary["reinstated"] == deferred.report["inspect"]["summary"]["deferred"] > 0
    kinds = [row["kind"] for row in onnxfold.inspect(back.model)["norms"]]
    assert Counter(kinds) == Counter(row["kind"] for row in plain["norms"])
    names = [node.name for node in back.model.graph if node.name]
    assert len(set(names)) == len(names)
    (feeds,) = make_inputs(model, InputSpec(), count=1, seed=0)
    first, second = (run(m, feeds, precision=Precision.FLOAT64) for m in (model, back.model))
    # Weights are rounded to float32 wherever gammas have moved or a mean was taken out.
    for output, before in first.items():
        assert np.abs(before - second[output]).max() <= 1e-5 * np.abs(before).max()


def test_a_cast_that_changes_no_type_is_not_taken_back() -> None:
    """The node before it is a layer, and its own input is not one of the layer's results."""
    body = "n = RMSNormalization<axis=-1>(x, ones) h = MatMul(n, W) c = Cast<to=11>(h) y = Relu(c)"
    made = weights(W=(6, 6)) | {"ones": np.ones(6)}
    model = graph(body, "double[B,T,6] x", "double[B,T,6] y", made, opset=23)
    deferred = onnxfold.optimize(model, defer="all", defer_means=True, check=0)
    back = onnxfold.optimize(deferred.model, check=0)
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    assert error(model, back.model) < BOUND


def test_deferral_leaves_what_is_deferred() -> None:
    model = onnxfold.optimize(BODIES["a ReLU"][0](18), defer="all", check=0).model
    document = onnxfold.inspect(model, defer="all")
    assert [row["action"] for row in document["deferred_before"]] == ["keep"]
    assert document["summary"]["reinstated"] == 0


def _spelled_by_others(more: str = "", outputs: str = "") -> ir.Model:
    """s = x^-0.5 of a mean square, after a linear layer: nobody's spelling of ours."""
    body = (
        "sq = Mul(x, x) ms = ReduceMean(sq, last) me = Add(ms, eps) s = Pow(me, half) "
        f"h = MatMul(x, W) hs = Mul(s, h) a = Relu(hs) {more} y = MatMul(a, V)"
    )
    outputs = f"double[B,T,3] y{outputs}"
    return rms_graph(body, outputs=outputs, W=(6, 12), V=(12, 3), half=np.array(-0.5))


def test_other_spellings_are_taken_back_too() -> None:
    model = _spelled_by_others()
    back = onnxfold.optimize(model, check=0)
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    assert error(model, back.model) < BOUND


@pytest.mark.parametrize(
    "spelled",
    ["s = Reciprocal(r) hs = Mul(h, s)", "s = Div(one, r) hs = Mul(s, h)", "hs = Div(h, r)"],
)
def test_a_quotient_of_a_layer_is_taken_back_in_every_spelling(spelled: str) -> None:
    body = (
        "sq = Mul(x, x) ms = ReduceMean(sq, last) me = Add(ms, eps) r = Sqrt(me) "
        f"h = MatMul(x, W) {spelled} a = Relu(hs) y = MatMul(a, V)"
    )
    model = rms_graph(body, W=(6, 12), V=(12, 3), one=np.array(1.0))
    back = onnxfold.optimize(model, check=0)
    assert back.report["inspect"]["summary"]["reinstated"] == 1
    assert error(model, back.model) < BOUND


@pytest.mark.parametrize("number", [10, 16], ids=["float16", "bfloat16"])
def test_no_cast_to_a_wider_type_and_back_stays_behind_a_layer(number: int) -> None:
    dtype = ir.DataType(number)
    body = "n = RMSNormalization<axis=-1>(x, ones) h = MatMul(n, W) y = Relu(h)"
    made = {"ones": np.ones(6, dtype.numpy()), "W": weights(W=(6, 6))["W"].astype(dtype.numpy())}
    name = dtype.name.lower()
    model = graph(body, f"{name}[B,T,6] x", f"{name}[B,T,6] y", made, opset=23)
    deferred = onnxfold.optimize(model, defer="all", defer_means=True, check=0)
    assert "Cast" in [node.op_type for node in deferred.model.graph][-2:]
    back = onnxfold.optimize(deferred.model, check=0)
    assert [node.op_type for node in back.model.graph][-2:] == ["MatMul", "Relu"]


def test_a_power_of_two_leaves_the_mean_of_half_floats() -> None:
    """The range of float16 asks for it; the norm is plain again, and nothing is dead.

    Deferral has the mean square times 2^-6 with 2^-6 of epsilon, and 2^3 too little in W.
    """
    made = {"ones": np.ones(6, np.float16), "W": weights(W=(6, 12))["W"].astype(np.float16)}
    body = "n = RMSNormalization<axis=-1>(x, ones) y = MatMul(n, W)"
    model = graph(body, "float16[B,T,6] x", "float16[B,T,12] y", made, opset=23)
    deferred = onnxfold.optimize(model, defer="all", defer_means=True, check=0)
    assert "W.halved" in deferred.model.graph.initializers
    back = onnxfold.optimize(deferred.model, check=0)
    stored = [value.const_value for value in back.model.graph.initializers.values()]
    numbers = {each.numpy().item() for each in stored if each is not None and each.size == 1}
    assert numbers == {8.0, float(np.float32(1e-5))}
    info = ModelInfo(back.model)
    assert not [node.op_type for node in info.nodes() if info.is_dead(node)]
    assert not onnxfold.optimize(back.model, check=0).changed


def test_excluded_norms_stay_deferred() -> None:
    info = prepare(_spelled_by_others()).info
    assert decide(info, Settings(exclude=".")).empty
    assert not decide(info, Settings()).empty


def test_a_reader_of_what_has_no_scale_keeps_it_deferred_and_forcing_breaks_it() -> None:
    """With y in place of x, the sigmoid would be another."""
    info = prepare(_spelled_by_others("z = Sigmoid(h)", ", double[B,T,12] z")).info
    plan = decide(info, Settings())
    (found,) = plan.found
    assert plan.empty
    assert found.refusal is not None
    assert found.refusal.code.value == "exact_reader"
    forced = ReinstatingPlan((FoundDeferred(found.name, found.ref, reinstated=True),))
    edit = Editor(info, copy=True)
    apply(edit, forced, Settings())
    assert prove(info, ModelInfo(edit.model), forced).failures
    assert error(info.model, edit.model) > 1e-3


def test_a_power_of_another_degree_is_no_deferred_norm() -> None:
    """s^2 behind one linear layer is not what an RMS norm before it gives."""
    model = _spelled_by_others()
    (half,) = (v for n, v in model.graph.initializers.items() if n == "half")
    half.const_value = ir.tensor(np.array(-1.0), name="half")
    assert onnxfold.inspect(model)["deferred_before"] == []


def test_a_plan_that_is_left_out_says_why() -> None:
    plan = ReinstatingPlan((FoundDeferred("n", "n", reinstated=True),))
    left = plan.left_out("because")
    assert left.empty
    assert [row.to_json()["action"] for row in left.found] == ["keep"]
    assert replace(left.found[0], refusal=None) == replace(plan.found[0], reinstated=False)
