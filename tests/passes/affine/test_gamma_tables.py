"""Gammas of queries and keys go into cos and sin, under --fuse-affine always alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.passes import gamma_tables as tables_of_gammas
from onnxfold.passes.affine import into_tables
from tests.graphs import Array
from tests.lanes import some
from tests.passes.affine.affine_graphs import error
from tests.passes.deferral.test_rotary_tables import CASES, SIZE, _model

BOUND = 1e-12  # float64 throughout


@pytest.mark.parametrize(
    ("case", "target"), some(product(list(CASES)[:4], ("onnx", "ort", "kernels")), each=2)
)
def test_always_moves_gammas_into_tables(case: str, target: str) -> None:
    model = _model(*CASES[case], gammas=(SIZE,))
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


def _add_betas(model: ir.Model, beta: Array) -> None:
    """Add a beta after the gamma of each norm of queries and keys."""
    added = ir.Value(name="beta", const_value=ir.tensor(beta, name="beta"))
    model.graph.register_initializer(added)
    for each in [node for node in model.graph if node.outputs[0].name in ("qh", "kh")]:
        node = ir.node("Add", [each.outputs[0], added])
        node.outputs[0].name = f"{each.outputs[0].name}.beta"
        each.outputs[0].replace_all_uses_with(node.outputs[0])
        node.replace_input_with(0, each.outputs[0])
        model.graph.insert_after(each, node)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_beta_of_zeros_goes_with_the_gamma(target: str) -> None:
    """A second run would see no beta, and move the gamma then."""
    model = _model(*CASES["halves, cached"], gammas=(SIZE,))
    _add_betas(model, np.zeros(SIZE))
    result = onnxfold.optimize(model, target=target, fuse_affine="always", check=0)
    assert "left_out" not in result.report
    moved = [fusion for fusion in result.plan.fusions if fusion.tables]
    assert [(fusion.gamma, fusion.beta) for fusion in moved] == [(True, True)] * 2
    assert error(model, result.model) < BOUND
    again = onnxfold.optimize(result.model, target=target, fuse_affine="always", check=0)
    assert not again.changed


def test_another_beta_keeps_the_gamma() -> None:
    model = _model(*CASES["halves, cached"], gammas=(SIZE,))
    _add_betas(model, np.array([0.0, 0.0, 0.0, 1.0]))
    result = onnxfold.optimize(model, fuse_affine="always", check=0)
    assert not any(fusion.tables for fusion in result.plan.fusions)


@pytest.mark.parametrize("case", ["com.microsoft, halves", "opset 23, neighbours"])
def test_operators_that_hold_each_number_once_take_none(case: str) -> None:
    model = _model(*CASES[case], gammas=(SIZE,))
    result = onnxfold.optimize(model, fuse_affine="always", check=0)
    assert not any(fusion.tables for fusion in result.plan.fusions)
    norms = {row["output"]: row for row in result.report["inspect"]["norms"]}
    assert norms["qh"]["affine_reason"] is not None


def test_a_gamma_that_is_not_turned_breaks_the_model_and_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _model(*CASES["halves, cached"], gammas=(SIZE,))
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
    model = _model(*CASES["halves, cached"], gammas=(SIZE,))
    for name in ("qgamma", "kgamma"):
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(np.ones(SIZE), name=name)
    result = onnxfold.optimize(model, fuse_affine="always", check=0)
    assert not any(fusion.tables for fusion in result.plan.fusions)
