"""Norms of stored tables, as of relative positions: sessions compute them once, when they load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfold
from tests.sessions import executed

NORMS = {
    "LayerNorm": "n = LayerNormalization<axis=-1>(table, gamma, beta)",
    "RMSNorm": """square = Pow(table, two)  mean = ReduceMean<axes=[-1]>(square)
        shifted = Add(mean, epsilon)  root = Sqrt(shifted)  ratio = Div(table, root)
        n = Mul(gamma, ratio)""",
}


def model_of(norm: str, rows: int) -> onnx.ModelProto:
    """Scores of x with the projected norm of a table."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, 8] x) => (float[batch, {rows}] y) {{
            {NORMS[norm]}
            keys = MatMul(n, w)  turned = Transpose(keys)  y = MatMul(x, turned)
        }}"""
    )
    rng = np.random.default_rng(0)
    shapes = {"table": (rows, 8), "w": (8, 8), "gamma": (8,), "beta": (8,)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    arrays |= {"two": np.array(2.0), "epsilon": np.array(1e-5)}
    for name, array in arrays.items():
        tensor = numpy_helper.from_array(array.astype(np.float32), name)
        if name in {each for node in model.graph.node for each in node.input}:
            model.graph.initializer.append(tensor)
    return model


@pytest.mark.parametrize("rows", [4, 4096])
@pytest.mark.parametrize("norm", NORMS)
def test_a_session_with_our_kernels_computes_no_norm_of_constants(
    norm: str, rows: int, tmp_path: Path
) -> None:
    result = onnxfold.optimize(model_of(norm, rows), target="kernels")
    session = executed(result.model, tmp_path, kernels=True)
    assert [node.op_type for node in session.graph.node] == ["MatMul"]


def test_the_reason_is_named() -> None:
    result = onnxfold.optimize(model_of("LayerNorm", 4096), target="kernels")
    (row,) = result.report["inspect"]["norms"]
    assert row["reason"]["code"] == "not_worth"
    assert "reads constants, and runtimes compute it once" in row["reason"]["sentence"]
