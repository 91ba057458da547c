"""Weights of experts that write into a stream: centered in each expert, and scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.target import Target
from tests.graphs import graph, weights
from tests.soundness.folding import fold, forced

BOUND = 1e-12  # float64 throughout
_MIX = 'k=2, activation_type="silu", normalize_routing_weights=1'
_BLOCK = f"""h = MatMul(u, T) p = MatMul(u, R) m = com.microsoft.MoE<{_MIX}>(u, p, A, a, B, b)
s = Add(h, m)"""
_NORM = "n = LayerNormalization<axis=-1>(s, one) y = MatMul(n, V)"
_SHAPES = {"T": (6, 6), "R": (6, 4), "A": (4, 5, 6), "a": (4, 5), "B": (4, 6, 5), "b": (4, 6)}


def _model(after: str = _NORM, outputs: str = "", block: str = _BLOCK) -> onnx.ModelProto:
    constants: dict[str, Any] = weights(**_SHAPES, V=(6, 3)) | {"one": np.ones(6), "half": 0.5}
    read = f"{block} {after}".replace("(", " ").replace(")", " ").replace(",", " ").split()
    kept = {name: array for name, array in constants.items() if name in read}
    made = graph(f"{block} {after}", "double[N,6] u", f"double[N,3] y{outputs}", kept, opset=17)
    return ir.to_proto(made)


def _rows() -> dict[str, Any]:
    u = np.random.default_rng(0).standard_normal((9, 6))
    u[1], u[2], u[3], u[4] = 3.0, u[2] + 1e3, u[3] * 1e3, 0.0
    return {"u": u}


def _error(before: onnx.ModelProto, after: onnx.ModelProto) -> float:
    made = (run(ir.from_proto(m), _rows(), precision=Precision.FLOAT64) for m in (before, after))
    first, second = (np.concatenate([*map(np.ravel, each.values())]) for each in made)
    return float(np.abs(first - second).max() / np.abs(first).max())


@pytest.mark.parametrize("target", list(Target))
def test_the_weights_that_experts_write_with_are_centered(target: Target) -> None:
    model = _model()
    folded = fold(model, target)
    assert len(folded.plan.folds) == 1
    assert {weight.value for weight in folded.plan.weights} == {"T", "B", "b"}
    assert folded.proof.passed
    assert _error(model, folded.model) < BOUND
    again = fold(folded.model, target)
    assert not again.plan.folds
    assert not again.plan.weights


def test_codes_that_experts_write_with_stay() -> None:
    codes = _BLOCK.replace("MoE", "QMoE").replace("A, a, B, b", "A, a, , B, b")
    plan = fold(_model(block=codes)).plan
    assert not plan.folds


def test_a_norm_stays_where_somebody_sees_the_mean() -> None:
    model = _model(f"{_NORM} z = Tanh(m)", ", double[N,6] z")
    assert not fold(model).plan.folds
    wrong = forced(model, fold(_model()).plan)
    assert not wrong.proof.passed
    assert _error(model, wrong.model) > 1e-3


@pytest.mark.parametrize("name", ["B", "b"])
def test_one_expert_that_keeps_its_mean_fails_the_proof(name: str) -> None:
    model, plan = _model(), fold(_model()).plan
    kept = tuple(weight for weight in plan.weights if weight.value != name)
    wrong = forced(model, type(plan)(**{**_fields(plan), "weights": kept}))
    assert not wrong.proof.passed


def _fields(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}
