"""Norms that have lost gamma and beta: one constant of 1/2 for all, none that is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from tests import graphs
from tests.optimized import optimized

RECIPES = Path(__file__).parents[2] / "recipes"
READERS = {
    "onnx": {"Mul", "LayerNormalization"},  # of ViT, whose epsilon others take for 0
    "ort": {"SimplifiedLayerNormalization"},
    "kernels": {
        f"{residual}RMSNormScale{total}"
        for residual in ("", "Add", "AddBias")
        for total in ("", "WithSum")
    },
}


def _halves(model: onnx.ModelProto) -> list[str]:
    arrays = {weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer}
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return [name for name, array in floats.items() if array.size > 1 and np.all(array == 0.5)]


@pytest.mark.parametrize("target", READERS)
@pytest.mark.parametrize("name", ["gpt2", "vit-b16"])
def test_norms_without_gamma_share_their_scale(name: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "folded.onnx"
    result = onnxfold.optimize(RECIPES / f"{name}.onnx", path, target=target, check=None)
    assert sum(fusion.gamma for fusion in result.plan.fusions) >= 3
    model = onnx.load(path)
    (halves,) = _halves(model)
    readers = [node.op_type for node in model.graph.node if halves in node.input]
    assert len(readers) >= 4
    assert set(readers) <= READERS[target]
    bodies = [node for body in model.functions for node in body.node]
    assert not any(node.op_type == "ConstantOfShape" for node in [*model.graph.node, *bodies])


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("level", [0, 1])
def test_a_norm_that_stays_keeps_its_beta_as_zeros(target: str, level: int) -> None:
    """ONNX Runtime's transformers optimizer reads it unasked."""
    body = "s = Add(x, r) n = LayerNormalization<axis=-1>(s, G, B) h = MatMul(n, W) y = Add(h, C)"
    made = graphs.weights(G=(8,), B=(8,), W=(8, 8), C=(8,))
    inputs = "float[B,4,8] x, float[B,4,8] r"
    original = graphs.model(body, inputs, "float[B,4,8] y", made, 17, dtype=np.float32)
    result = onnxfold.optimize(original, target=target)
    assert [fusion.beta for fusion in result.plan.fusions] == [True]
    (norm,) = (node for node in result.model.graph.node if node.op_type == "LayerNormalization")
    zeros = {tensor.name: tensor for tensor in result.model.graph.initializer}[norm.input[2]]
    assert not np.any(onnx.numpy_helper.to_array(zeros))
    assert not onnxfold.optimize(result.model, target=target).changed
    made = optimized(result.model, "bert", level, num_heads=2, hidden_size=8)  # takes it apart
    assert any("LayerNormalization" in node.op_type for node in made.graph.node)
