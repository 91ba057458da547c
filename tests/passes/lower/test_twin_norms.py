"""Norms of one value with gammas of their own, as of Falcon: ONNX Runtime fuses each of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.runtime.sessions import session_operators
from tests import graphs
from tests.optimized import optimized

WIDTH = 8


def parallel(behind: str, opset: int = 18, kind: str = "float") -> onnx.ModelProto:
    """Norms n1, n2, .. of a centered sum, each written as an output."""
    count = behind.count("LayerNormalization")
    outputs = ", ".join(f"{kind}[B,4,{WIDTH}] n{number + 1}" for number in range(count))
    body = f"p = MatMul(x, W) r = Add(p, C) q = MatMul(x, V) s = Add(r, q) {behind}"
    vectors = dict.fromkeys(sorted(set(re.findall(r"\b[A-Z]\d?\b", body)) - set("WV")), (WIDTH,))
    made = graphs.weights(W=(WIDTH, WIDTH), V=(WIDTH, WIDTH), **vectors)
    dtype = np.float16 if kind == "float16" else np.float32
    return graphs.model(body, f"{kind}[B,4,{WIDTH}] x", outputs, made, opset, dtype=dtype)


TWO = "n1 = LayerNormalization(s, G1, B1)  n2 = LayerNormalization(s, G2, B2)"
THREE = f"{TWO}  n3 = LayerNormalization(s, G3, B3)"
EPSILONS = "n1 = LayerNormalization(s, G1)  n2 = LayerNormalization<epsilon=1e-3>(s, G1)"
SPELLED = {"Pow", "ReduceMean", "Sqrt", "Div"}
SAME = "m1 = LayerNormalization(s, G1)  n1 = Exp(m1)  m2 = LayerNormalization(s, G1)  n2 = Tanh(m2)"


def executed(model: onnx.ModelProto, folder: Path) -> dict[str, int]:
    path = folder / "folded.onnx"
    onnx.save(model, path)
    found = session_operators(path)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize(("behind", "norms"), [(TWO, 2), (THREE, 3), (EPSILONS, 2), (SAME, 1)])
def test_each_becomes_one_operator_of_a_session(
    behind: str, norms: int, kind: str, tmp_path: Path
) -> None:
    result = onnxfold.optimize(parallel(behind, kind=kind))
    assert len(result.plan.folds) == behind.count("LayerNormalization")
    nodes = executed(result.model, tmp_path)
    assert nodes["SimplifiedLayerNormalization"] == norms
    assert not nodes.keys() & SPELLED
    assert not onnxfold.optimize(result.model).changed


def test_the_second_norm_of_a_sum_has_a_body_of_its_own(tmp_path: Path) -> None:
    """The call of the first gives the sum, and has another name."""
    result = onnxfold.optimize(parallel(TWO), target="kernels")
    calls = {node.op_type for node in result.model.graph.node if node.domain == "onnxfold"}
    assert calls == {"AddBiasRMSNormAffineWithSum", "RMSNormAffine"}
    nodes = executed(result.model, tmp_path)
    assert not nodes.keys() & SPELLED
    again = onnxfold.optimize(result.model, target="kernels")
    assert not again.changed


@pytest.mark.torch
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("behind", [TWO, THREE])
def test_the_transformers_optimizer_fuses_each(behind: str, level: int) -> None:
    folded = onnxfold.optimize(parallel(behind)).model
    made = optimized(folded, "bert", level, num_heads=2, hidden_size=WIDTH)
    kinds = [node.op_type for node in made.graph.node]
    assert sum("SimplifiedLayerNormalization" in kind for kind in kinds) == behind.count("Layer")
    assert not set(kinds) & SPELLED
