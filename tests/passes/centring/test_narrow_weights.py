"""Half floats after a Cast are exact numbers of a wider computation, and are not rounded again."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from tests.graphs import Array, graph, weights

# Between the stored weight and the Cast: what passes numbers on as they are.
_BETWEEN = {
    "nothing": "Identity(V16)",
    "Transpose": "Transpose<perm=[1,0]>(V16)",
    "Tile": "Tile(V16, ones)",
    "Expand": "Expand(V16, size)",
    "Dropout": "Dropout(V16)",
    "Where": "Where(mask, V16, V16)",
    "Pad": "Pad(V16, none)",
    "GatherND": "GatherND(V16, rows)",
    "Neg": "Neg(V16)",
    "Sum": "Sum(V16)",
    "Mul": "Mul(V16, two)",
    "Add": "Add(V16, zero)",
}
_BODIES = {kind: f"T = {between} V = Cast<to=1>(T) " for kind, between in _BETWEEN.items()}
_BODIES |= {
    "CastLike": "V = CastLike(V16, x) ",
    "table": "i = Cast<to=7>(x) r = ReduceSum<keepdims=0>(i, last) s = Abs(r) k = Mod(s, six) "
    "t = Gather(V16, k) h = Cast<to=1>(t) ",
}
_CONSTANTS = {
    "last": np.array([-1]),
    "mask": np.ones((6, 1), np.bool_),
    "none": np.zeros(4, np.int64),
    "ones": np.ones(2, np.int64),
    "rows": np.arange(6)[:, np.newaxis],
    "six": np.array(6),
    "size": np.array([6, 6]),
    "two": np.array(2, np.float16),
    "zero": np.zeros(1, np.float16),
}
_NORM = "n = LayerNormalization<axis=-1>(h, gamma) "


def _model(kind: str) -> ir.Model:
    made = weights(V=(6, 6), gamma=(6,), W=(6, 6))
    product = "" if kind == "table" else "h = MatMul(x, V) "
    body = f"{_BODIES[kind]}{product}{_NORM}W = Cast<to=1>(W16) y = MatMul(n, W)"
    constants = {"gamma": made["gamma"].astype(np.float32)}
    constants |= {"V16": made["V"].astype(np.float16), "W16": made["W"].astype(np.float16)}
    words = set(re.findall(r"\w+", body))
    constants |= {name: array for name, array in _CONSTANTS.items() if name in words}
    return graph(body, "float[B,4,6] x", "float[B,4,6] y", constants)


@pytest.mark.parametrize("kind", _BODIES)
def test_a_weight_that_is_stored_narrow_stays_and_says_so(kind: str) -> None:
    result = onnxfold.optimize(_model(kind))
    assert result.plan.empty
    (row,) = result.report["inspect"]["norms"]
    for reason, name in ((row["reason"], "V16"), (row["affine_reason"], "W16")):
        assert reason["code"] == "unsupported_type"
        assert reason["nodes"] == [name]
        assert "rounded again" in reason["sentence"]


@pytest.mark.parametrize("kind", _BODIES)
def test_the_proof_refuses_a_weight_that_is_rounded_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _force(monkeypatch)
    result = onnxfold.optimize(_model(kind), check=0, norm_form="decomposed")
    assert result.plan.empty
    (row,) = result.report["inspect"]["norms"]
    for reason, name in ((row["reason"], "V16"), (row["affine_reason"], "W16")):
        assert f"'{name}' is rounded to FLOAT16 and computed with as FLOAT" in reason["sentence"]


@pytest.mark.parametrize(("step", "folds"), [(6, 1), (1, 0)])
def test_the_proof_takes_a_weight_of_which_no_number_is_rounded(
    step: int, folds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means of six integers are integers if their sum is a multiple of six, otherwise sixths."""
    _force(monkeypatch)
    V16 = step * np.random.default_rng(1).integers(-9, 9, (6, 6)).astype(np.float16)
    body = "V = Cast<to=1>(V16) h = MatMul(x, V) y = LayerNormalization<axis=-1>(h, gamma)"
    constants: dict[str, Array] = {"V16": V16, "gamma": weights(gamma=(6,))["gamma"]}
    constants["gamma"] = constants["gamma"].astype(np.float32)
    model = graph(body, "float[B,4,6] x", "float[B,4,6] y", constants)
    assert len(onnxfold.optimize(model, check=0).plan.folds) == folds


@pytest.mark.parametrize("between", ["Mul(V16, three)", "Div(V16, three)", "Add(V16, row)"])
def test_a_weight_may_change_where_the_model_rounds_it_itself(between: str) -> None:
    """Its products and sums are rounded to half floats before the Cast."""
    made = weights(V=(6, 6), gamma=(6,), row=(6,))
    body = f"T = {between} V = Cast<to=1>(T) h = MatMul(x, V) "
    body += "y = LayerNormalization<axis=-1>(h, gamma)"
    constants: dict[str, Array] = {"gamma": made["gamma"].astype(np.float32)}
    constants["V16"] = made["V"].astype(np.float16)
    other = "row" if "row" in between else "three"
    constants[other] = made["row"].astype(np.float16) if other == "row" else np.float16([3])
    result = onnxfold.optimize(graph(body, "float[B,4,6] x", "float[B,4,6] y", constants), check=0)
    assert len(result.plan.folds) == 1
    assert result.report["proof"]["passed"]


def test_a_weight_of_float32_behind_a_cast_to_double_stays() -> None:
    made = weights(V=(6, 6), gamma=(6,))
    body = "V = Cast<to=11>(V32) h = MatMul(x, V) y = LayerNormalization<axis=-1>(h, gamma)"
    constants = {"gamma": made["gamma"], "V32": made["V"].astype(np.float32)}
    model = graph(body, "double[B,4,6] x", "double[B,4,6] y", constants)
    result = onnxfold.optimize(model)
    assert result.plan.empty
    assert "stored as FLOAT and computed with as DOUBLE" in _sentence(result)


@pytest.mark.parametrize("kind", ["nothing", "Tile", "CastLike"])
def test_a_mean_that_is_0_but_for_roundings_of_half_floats_is_seen(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm takes out what the rounding of the stored numbers left: 1,000 roundings."""
    V = weights(V=(6, 6))["V"]
    constants = {"V16": (V - V.mean(axis=1, keepdims=True)).astype(np.float16)}
    constants |= {"gamma": np.full(6, 2, np.float32), "ones": _CONSTANTS["ones"]}
    body = f"{_BODIES[kind]}h = MatMul(x, V) y = LayerNormalization<axis=-1>(h, gamma)"
    if kind != "Tile":
        del constants["ones"]
    model = graph(body, "float[B,4,6] x", "float[B,4,6] y", constants)
    assert onnxfold.optimize(model, check=0).plan.empty
    _force(monkeypatch)
    forced = onnxfold.optimize(model, check=0)
    assert forced.plan.empty
    assert "the proof failed" in _sentence(forced)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_weight_that_is_stored_narrow_gets_no_channel_back(*, narrow: bool) -> None:
    """The last channel would be minus the sum of the others, rounded to half floats."""
    made, cast = weights(V=(6, 5), gamma=(6,)), "Cast<to=1>(V0)"
    body = (
        f"V = {cast} v = MatMul(x, V) s = ReduceSum<keepdims=1>(v, last) m = Neg(s) "
        "e = Concat<axis=-1>(v, m) y = RMSNormalization<axis=-1>(e, gamma)"
    )
    constants = {"V0": made["V"].astype(np.float16 if narrow else np.float32)}
    constants |= {"gamma": made["gamma"].astype(np.float32), "last": np.array([-1])}
    model = graph(body, "float[B,4,6] x", "float[B,4,6] y", constants, opset=23)
    result = onnxfold.convert(model, to="rms")
    written = [node.op_type for node in result.model.graph]
    assert ("Concat" in written) is narrow


def _force(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("streams.dataflow", "passes.affine.absorptions", "passes.scales.decide"):
        monkeypatch.setattr(f"onnxfold.{module}.refuse_narrow", lambda *_: None)


def _sentence(result: onnxfold.Result) -> str:
    (row,) = result.report["inspect"]["norms"]
    return str(row["reason"]["sentence"])


def test_forced_it_would_lose_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the edited weights, in float64 throughout, is as large as for half floats."""
    model = _model("nothing")
    monkeypatch.setattr("onnxfold.streams.dataflow.refuse_narrow", lambda *_: None)
    folded = onnxfold.optimize(model, check=None, fuse_affine=False).model
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 4, 6))}
    before, after = (run(m, feeds, precision=Precision.FLOAT64)["y"] for m in (model, folded))
    error = np.abs(after - before).max() / np.abs(before).max()
    assert 2.0**-16 < error < 2.0**-8


def test_a_narrow_weight_that_is_computed_with_as_it_is_may_change() -> None:
    made = {name: a.astype(np.float16) for name, a in weights(V=(6, 6), gamma=(6,)).items()}
    body = "h = MatMul(x, V) y = LayerNormalization<axis=-1>(h, gamma)"
    model = graph(body, "float16[B,4,6] x", "float16[B,4,6] y", made)
    assert len(onnxfold.optimize(model).plan.folds) == 1
