"""Norms that have lost gamma and beta: one constant of ones for all, none that is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold

RECIPES = Path(__file__).parents[2] / "recipes"
READERS = {
    "onnx": {"Mul"},
    "ort": {"SimplifiedLayerNormalization"},
    "kernels": {
        f"{residual}RMSNormScale{total}"
        for residual in ("", "Add", "AddBias")
        for total in ("", "WithSum")
    },
}


def _ones(model: onnx.ModelProto) -> list[str]:
    arrays = {weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer}
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return [name for name, array in floats.items() if array.size > 1 and np.all(array == 1)]


@pytest.mark.parametrize("target", READERS)
@pytest.mark.parametrize("name", ["gpt2", "vit-b16"])
def test_norms_without_gamma_share_their_ones(name: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "folded.onnx"
    result = onnxfold.optimize(RECIPES / f"{name}.onnx", path, target=target, check=None)
    assert sum(fusion.gamma for fusion in result.plan.fusions) >= 3
    model = onnx.load(path)
    (ones,) = _ones(model)
    readers = [node.op_type for node in model.graph.node if ones in node.input]
    assert len(readers) >= 4
    assert set(readers) <= READERS[target]
    bodies = [node for body in model.functions for node in body.node]
    assert not any(node.op_type == "ConstantOfShape" for node in [*model.graph.node, *bodies])
