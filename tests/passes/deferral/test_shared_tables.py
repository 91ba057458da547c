"""Tables that heads share take the scale of a norm in place of queries and keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

import onnxfold
from onnxfold.passes.deferral.plan import DeferralPlan
from tests.passes.deferral.deferral_graphs import (
    defer,
    forced,
    glu,
    rotary,
)


@pytest.mark.parametrize("opset", [18, 23])
def test_tables_that_heads_share_take_the_scale(opset: int) -> None:
    """2 h multiplications for cos and sin in place of (H + K) h, for queries and keys together."""
    found = defer(rotary(opset))
    (norm,) = found.plan.norms
    assert norm.multiplied == ()
    assert {table.node for table in norm.tables} == {"qc", "qs", "kc", "ks"}
    assert norm.multiplications_saved == 6 - 2 * 4
    products = sum(node.op_type == "Mul" for node in found.after.graph)
    assert products == sum(node.op_type == "Mul" for node in found.before.graph) + 2
    found.assert_right()


def test_a_table_that_keeps_its_numbers_breaks_the_model_and_its_proof() -> None:
    model = rotary()
    norm = defer(model).norm
    forced(model, DeferralPlan((replace(norm, tables=norm.tables[1:]),))).assert_broken()


def test_a_scale_that_no_head_shares_is_no_table() -> None:
    """A gate of the hidden layer has as many elements as its cofactor."""
    norm = defer(glu("e = Sigmoid(h) g = Mul(h, e)", 18)).norm
    assert norm.tables == ()


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_second_run_changes_no_tables(target: str) -> None:
    once = onnxfold.optimize(rotary(), target=target, defer="all")
    assert "left_out" not in once.report
    assert once.changed
    again = onnxfold.optimize(once.model, target=target, defer="all", check=0)
    assert not again.changed
