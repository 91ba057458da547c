"""A norm of half floats that is computed in float32 folds like one operator of half floats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from tests.graphs import graph, weights

_NORM = (
    "h = Gather(V, i) f = Cast<to=1>(h) m = ReduceMean<keepdims=1>(f, last) d = Sub(f, m) "
    "q = Mul(d, d) v = ReduceMean<keepdims=1>(q, last) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) "
)
_ROUNDED = "r = Cast<to=10>(n) p = Mul(r, gamma) y = MatMul(p, W) "
_BESIDE = "k = Cast<to=1>(h) o = Softmax<axis=-1>(k)"
_IN_FLOAT = "g = Cast<to=1>(gamma) p = Mul(n, g) U = Cast<to=1>(W) y = MatMul(p, U) "


def _model(end: str, outputs: str) -> ir.Model:
    made = weights(V=(6, 32), gamma=(32,), W=(32, 6), c=(6,))
    constants = {name: array.astype(np.float16) for name, array in made.items()}
    constants |= {"last": np.array([-1]), "eps": np.float32([1e-5])}
    constants["G"] = made["gamma"].astype(np.float32)
    return graph(_NORM + end, "int64[B,4] i", outputs, constants)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_it_folds_and_is_proved(target: str) -> None:
    model = _model(_ROUNDED, "float16[B,4,6] y")
    result = onnxfold.optimize(model, target=target, fold="always", fuse_affine="never")
    assert [fold.output for fold in result.plan.folds] == ["p"]
    assert result.proof is not None
    assert result.proof.folded_norms == 1
    feeds = {"i": np.arange(24).reshape(6, 4) % 6}
    once, again = (run(m, feeds, precision=Precision.FLOAT64)["y"] for m in (model, result.model))
    np.testing.assert_allclose(again, once, rtol=0, atol=4e-3 * np.abs(once).max())


@pytest.mark.parametrize(
    ("end", "outputs"),
    [
        (_IN_FLOAT, "float[B,4,6] y"),
        (_ROUNDED + _BESIDE, "float16[B,4,6] y, float[B,4,32] o"),
    ],
)
def test_forced_it_is_refused_where_anything_needs_the_digits_of_float(
    end: str, outputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason() -> str:
        result = onnxfold.optimize(_model(end, outputs), fold="always", fuse_affine="never")
        assert result.plan.empty
        return str(result.report["inspect"]["norms"][0]["reason"]["sentence"])

    assert "would be rounded again" in reason()
    monkeypatch.setattr("onnxfold.streams.dataflow.refuse_narrow", lambda *_: None)
    assert "'V' is rounded to FLOAT16 and computed with as FLOAT" in reason()


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("defer", ["off", "all"])
@pytest.mark.parametrize(
    "before",
    [
        "r = Cast<to=10>(n) p = Mul(r, gamma)",
        "z = Mul(n, G) b = Add(z, G) p = Cast<to=10>(b)",
    ],
)
def test_a_second_run_changes_nothing(before: str, defer: str, target: str) -> None:
    model = ir.to_proto(_model(f"{before} w = MatMul(p, W) y = Add(w, c)", "float16[B,4,6] y"))
    once = onnxfold.optimize(model, target=target, defer=defer, check=0).model
    again = onnxfold.optimize(once, target=target, defer=defer, check=0)
    assert again.model.SerializeToString() == once.SerializeToString()
