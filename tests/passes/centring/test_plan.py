"""Plans are printable and go through JSON unchanged."""

from __future__ import annotations

import json

import pytest

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.options import Target
from onnxfold.passes.centring.plan import Fold, Insertion, WeightCentring
from onnxfold.passes.places import ReaderRef
from onnxfold.passes.plan import Plan
from onnxfold.refusal import Refusal, RefusalCode
from tests.soundness.folding import fold
from tests.soundness.random_graphs import random_graph

_FIBER = Fiber((AxisBlock(1, 1, 4, None), AxisBlock(2, 2, 3, 1)))
_PLAN = Plan(
    (Fold("norm", "y", ("W", "b")), Fold("other", "z@1")),
    (
        WeightCentring("W", _FIBER, 96),
        WeightCentring("table", Fiber(()), 8, (ReaderRef("e", 0), ReaderRef("f", 2))),
        WeightCentring("direct", _FIBER, 16, (), ("y",)),
    ),
    (Insertion("x", _FIBER, (ReaderRef("h", 1),), ("y", "z@1")),),
    (("left", Refusal(RefusalCode.ACTIVATION, "Relu 'r' is not linear", ("r",))),),
    120,
    7,
)


def test_a_plan_goes_through_json_unchanged() -> None:
    assert Plan.from_json(json.loads(json.dumps(_PLAN.to_json()))) == _PLAN


@pytest.mark.parametrize("seed", range(15))
def test_plans_of_random_graphs_go_through_json_unchanged(seed: int) -> None:
    plan = fold(random_graph(seed).model, Target.KERNELS, allow_split_bytes=100).plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("damage", ["folds", "weights", "gain_ps"])
def test_a_document_without_its_parts_is_refused(damage: str) -> None:
    document = _PLAN.to_json()
    del document[damage]
    with pytest.raises(KeyError):
        Plan.from_json(document)


def test_a_printed_plan_says_what_happens_to_everything() -> None:
    lines = str(_PLAN).splitlines()
    assert lines[:2] == ["fold      norm", "fold      other"]
    assert any(line.startswith("centre    W ") and line.endswith("in place") for line in lines)
    assert any(
        line.startswith("centre    table") and "copy for 2 readers" in line for line in lines
    )
    assert any(line == "insert    centring of x for 3 readers" for line in lines)
    assert any(line.startswith("leave     left: Relu 'r'") for line in lines)


def test_only_copies_count_as_stored_twice() -> None:
    assert _PLAN.split_bytes == 8 + 16
    assert not _PLAN.empty
    assert Plan().empty
