"""Deferral in float16 and bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.passes.deferral import flow
from tests.passes.affine.affine_graphs import graph, weights
from tests.passes.deferral.deferral_graphs import (
    defer,
)


def _layer(dtype: str, numbers: npt.DTypeLike) -> ir.Model:
    made = {name: a.astype(numbers) for name, a in weights(W=(6, 12), V=(12, 3)).items()}
    made |= {"ones": np.ones(6, numbers)}
    body = "n = RMSNormalization<axis=-1>(x, ones) h = MatMul(n, W) a = Relu(h) y = MatMul(a, V)"
    return graph(body, f"{dtype}[B,T,6] x", f"{dtype}[B,T,3] y", made, opset=23)


def test_float16_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not normalised may exceed its range: no bound on roundings can allow for that."""
    layer = _layer("float16", np.float16)
    assert defer(layer).reasons == {"n": "unsupported_type"}
    monkeypatch.setattr(flow, "_TYPES", (ir.DataType.FLOAT16,))
    broken = defer(layer)
    assert len(broken.plan.norms) == 1
    fed = {"x": np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float16) * 1e4}
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = (
            run(m, fed, precision=Precision.NATIVE)["y"] for m in (broken.before, broken.after)
        )
    assert np.isfinite(fed["x"]).all()
    assert np.isfinite(first).all()
    assert not np.isfinite(second).all()


def test_bfloat16_is_rounded_once_where_the_scale_is_multiplied() -> None:
    """Range of float32: s and the product are float32, and the product is rounded as y was."""
    found = defer(_layer("bfloat16", ml_dtypes.bfloat16))
    assert len(found.plan.norms) == 1
    assert not found.shown.failures
    x = np.random.default_rng(0).standard_normal((2, 5, 6)) * 1e4
    fed = {"x": x.astype(ml_dtypes.bfloat16)}
    truth, exact = (
        run(m, fed, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
    )
    assert np.abs(truth - exact).max() <= 1e-12 * np.abs(truth).max()
    rounded = run(found.after, fed, precision=Precision.NATIVE)["y"].astype(np.float64)
    # Roundings to the nearest of 8 bits: of h, which V takes on, of a V and of the product.
    x, layers = fed["x"].astype(np.float64), weights(W=(6, 12), V=(12, 3))
    n = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    inner, outer = (layers[k].astype(ml_dtypes.bfloat16).astype(np.float64) for k in "WV")
    bound = 2**-9 * (np.maximum(n @ inner, 0) @ np.abs(outer) + 2 * np.abs(truth))
    assert np.all(np.abs(rounded - truth) <= 1.02 * bound + 1e-6 * np.abs(truth).max())
