"""The plan of the last pass: it is empty where nothing is to be done."""

from __future__ import annotations

import pytest

from onnxfold.passes.lower.decide import LoweringPlan


@pytest.mark.parametrize(
    "plan",
    [
        LoweringPlan(respelled=("norm",)),
        LoweringPlan(fuse_residual=True),
        LoweringPlan(halve_first=True),
    ],
)
def test_a_plan_with_anything_to_do_is_not_empty(plan: LoweringPlan) -> None:
    assert not plan.empty
    assert plan.left_out("it fails the check").empty
