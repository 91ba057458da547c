"""Norms that absorbed what follows them, and have its name, are found in the report."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import graph, weights


@pytest.mark.parametrize("shape", ["", "s = Shape(n)"], ids=["", "its shape is read"])
def test_a_norm_that_absorbed_a_factor_folds_in_the_report_too(shape: str) -> None:
    """As in attention that asks q for its width."""
    made = weights(W=(8, 8), g=(8,), b=(8,))
    made = {name: array.astype(np.float32) for name, array in made.items()}
    made["third"] = np.asarray(1 / 3, np.float32)
    body = f"h = MatMul(x, W) n = LayerNormalization<axis=-1>(h, g, b) {shape} z = Mul(n, third) "
    values = "float[N,8] y" + (", int64[2] s" if shape else "")
    model = graph(body + "y = Tanh(z)", "float[N,8] x", values, made, opset=17)
    document = onnxfold.inspect(ir.to_proto(model), target="kernels", fold="always")
    assert document["summary"]["scales_fused"] == 1
    (row,) = document["norms"]
    assert (row["foldable"], row["action"], row["reason"]) == (True, "rms", None)
