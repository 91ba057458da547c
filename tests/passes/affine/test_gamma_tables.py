"""Gammas of queries and keys go into cos and sin, under --fuse-affine always alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.passes import gamma_tables as tables_of_gammas
from onnxfold.passes.affine import into_tables
from tests.lanes import some
from tests.passes.affine.affine_graphs import error
from tests.passes.deferral.test_rotary_tables import CASES, SIZE, _model

BOUND = 1e-12  # float64 throughout


@pytest.mark.parametrize(
    ("case", "target"), some(product(list(CASES)[:4], ("onnx", "ort", "kernels")), each=2)
)
def test_always_moves_gammas_into_tables(case: str, target: str) -> None:
    tables, turn, width, opset = CASES[case]
    model = _model(tables, turn, width, opset, gammas=(SIZE,))
    result = onnxfold.optimize(model, target=target, fuse_affine="always", check=0)
    assert "left_out" not in result.report
    moved = [fusion for fusion in result.plan.fusions if fusion.tables]
    assert [(fusion.output, fusion.left) for fusion in moved] == [("qh", 0.5), ("kh", 0.5)]
    norms = {row["output"]: row for row in result.report["inspect"]["norms"]}
    for output in ("qh", "kh"):
        assert norms[output]["gamma_fused"]
        assert norms[output]["affine_reason"] is None
        assert norms[output]["reason"]["code"] == "already_rms"
    assert error(model, result.model) < BOUND
    again = onnxfold.optimize(result.model, target=target, fuse_affine="always", check=0)
    assert not again.changed
    kept = onnxfold.optimize(model, target=target, check=0)
    assert not any(fusion.tables for fusion in kept.plan.fusions)


@pytest.mark.parametrize("case", ["com.microsoft, halves", "opset 23, neighbours"])
def test_operators_that_hold_each_number_once_take_none(case: str) -> None:
    tables, turn, width, opset = CASES[case]
    model = _model(tables, turn, width, opset, gammas=(SIZE,))
    result = onnxfold.optimize(model, fuse_affine="always", check=0)
    assert not any(fusion.tables for fusion in result.plan.fusions)
    norms = {row["output"]: row for row in result.report["inspect"]["norms"]}
    assert norms["qh"]["affine_reason"] is not None


def test_a_gamma_that_is_not_turned_breaks_the_model_and_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables, turn, width, opset = CASES["halves, cached"]
    model = _model(tables, turn, width, opset, gammas=(SIZE,))
    right = tables_of_gammas.gamma_tables

    def straight(*given: object, **options: object) -> object:
        found = right(*given, **options)  # type: ignore[arg-type]
        if found is not None:
            first = found.factors[0][2]
            found.factors = [(node, index, first) for node, index, _ in found.factors]
        return found

    monkeypatch.setattr(into_tables, "gamma_tables", straight)
    result = onnxfold.optimize(model, fuse_affine="always", check=0)
    assert not any(fusion.tables for fusion in result.plan.fusions)
    assert any("proof failed" in left["reason"] for left in result.report["left_out"])
    unproved = onnxfold.optimize(model, fuse_affine="always", check=None)
    assert any(fusion.tables for fusion in unproved.plan.fusions)
    assert error(model, unproved.model) > 1e-3


def test_gammas_of_ones_stay() -> None:
    tables, turn, width, opset = CASES["halves, cached"]
    model = _model(tables, turn, width, opset, gammas=(SIZE,))
    for name in ("qgamma", "kgamma"):
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(np.ones(SIZE), name=name)
    result = onnxfold.optimize(model, fuse_affine="always", check=0)
    assert not any(fusion.tables for fusion in result.plan.fusions)
