"""Operators after one part of a joint projection, and after a rotary embedding, in float64."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from onnxfold.passes.plan import Plan
from tests.case_files import read
from tests.passes.affine.affine_graphs import error
from tests.passes.scales.scale_graphs import BOUND, absorb, applied, assert_moved, scale_model

OF_PARTS = read("scales_of_parts")
REFUSED = read("scales_of_parts_refusals")


@pytest.mark.parametrize("case", OF_PARTS)
def test_a_scale_or_shift_of_one_part_moves_into_its_columns(case: str) -> None:
    done = assert_moved(OF_PARTS[case].body, int(OF_PARTS[case].columns[0]))
    plan = Plan.from_json(json.loads(json.dumps(Plan(scales=done.fusions).to_json())))
    assert plan.scales == done.fusions


@pytest.mark.parametrize("case", sorted(set(OF_PARTS) - {"the only slice"}))
def test_a_scale_or_shift_in_the_columns_of_another_part_fails_the_proof(case: str) -> None:
    before = scale_model(OF_PARTS[case].body)
    fusions = absorb(before).fusions
    place = next(index for index, fusion in enumerate(fusions) if fusion.part is not None)
    start, length, total = fusions[place].part or (0, 0, 0)
    moved = replace(fusions[place], part=((start + length) % (total - length), length, total))
    wrong = (*fusions[:place], moved, *fusions[place + 1 :])
    done = applied(before, wrong)
    # A factor of q may stand at k as well: then the function is the same, and shown to be.
    assert done.proof.passed == (error(before, done.model) < BOUND)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_scale_of_one_part_stays(case: str) -> None:
    assert not absorb(scale_model(REFUSED[case].body)).fusions
