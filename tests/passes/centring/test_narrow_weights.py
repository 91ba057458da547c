"""Half floats behind a Cast are exact numbers of a wider computation: no edit rounds them again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from tests.passes.affine.affine_graphs import graph, weights

_BODIES = {
    "matrix": "V = Cast<to=1>(V16) h = MatMul(x, V) ",
    "matrix, transposed": "Vt = Transpose<perm=[1,0]>(V16) V = Cast<to=1>(Vt) h = MatMul(x, V) ",
    "table": "i = Cast<to=7>(x) r = ReduceSum<keepdims=0>(i, last) s = Abs(r) k = Mod(s, six) "
    "t = Gather(V16, k) h = Cast<to=1>(t) ",
}


def _model(kind: str, norm: str = "n = LayerNormalization<axis=-1>(h, gamma) ") -> ir.Model:
    made = weights(V=(6, 6), gamma=(6,), W=(6, 6))
    constants = {"gamma": made["gamma"].astype(np.float32)}
    body = f"{_BODIES[kind]}{norm}W = Cast<to=1>(W16) y = MatMul(n, W)"
    constants |= {"V16": made["V"].astype(np.float16), "W16": made["W"].astype(np.float16)}
    if kind == "table":
        constants |= {"six": np.array(6), "last": np.array([-1])}
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


def test_forced_it_would_lose_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the edited weights, in float64 throughout, is that of half floats."""
    model = _model("matrix")
    monkeypatch.setattr("onnxfold.passes.centring.dataflow.refuse_narrow", lambda *_: None)
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
