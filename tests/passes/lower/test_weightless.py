"""Norms that have lost gamma and beta: no ones on portable, one shared constant elsewhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.operators.functions import SIGNATURES, Affine

RECIPES = Path(__file__).parents[2] / "recipes"


def _ones(model: onnx.ModelProto) -> list[str]:
    arrays = {weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer}
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return [name for name, array in floats.items() if array.size > 1 and np.all(array == 1)]


def _folded(name: str, target: str, tmp_path: Path) -> onnx.ModelProto:
    path = tmp_path / "folded.onnx"
    result = onnxfold.optimize(RECIPES / f"{name}.onnx", path, target=target, check=0)
    assert sum(fusion.gamma for fusion in result.plan.fusions) >= 3
    return onnx.load(path)


@pytest.mark.parametrize("name", ["gpt2", "llama-small", "vit-b16"])
def test_a_kernel_is_given_no_scale_where_gamma_has_moved(name: str, tmp_path: Path) -> None:
    model = _folded(name, "portable", tmp_path)
    assert not _ones(model)
    calls = Counter(
        SIGNATURES[node.op_type].affine for node in model.graph.node if node.op_type in SIGNATURES
    )
    kept = 1 if name == "gpt2" else 0  # the last norm's reader is tied to the embedding
    assert calls[Affine.SCALE] + calls[Affine.AFFINE] == kept
    assert calls[Affine.NONE] >= 4


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("name", ["gpt2", "vit-b16"])
def test_operators_that_need_a_scale_share_one(name: str, target: str, tmp_path: Path) -> None:
    model = _folded(name, target, tmp_path)
    (ones,) = _ones(model)
    readers = [node.op_type for node in model.graph.node if ones in node.input]
    assert len(readers) >= 4
    assert set(readers) == {"Mul" if target == "onnx" else "SimplifiedLayerNormalization"}
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
