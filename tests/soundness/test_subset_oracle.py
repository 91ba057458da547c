"""The plan against every subset of weights, tried without any law: it finds as many norms."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from onnxfold.model_io.load import open_source
from onnxfold.options import Folding
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import AFFINE_PASSES, decide_all
from onnxfold.target import Target
from tests.soundness.checking import check, settings_of
from tests.soundness.random_graphs import RandomGraph
from tests.soundness.subset_oracle import Sketch, feeds, foldable_by_trial, gated_stream, to_onnx

_GROUPS, _PER_GROUP = 10, 40
_MOST_SHORT = 0.02
# Means that are no weight's, and cancel: a Softmax and, after a Neg, another have 1/C and -1/C.
_CANCELLED = "Softmax"


def _planned(sketch: Sketch) -> int:
    settings = Settings(Target.ONNX, allow_split=0, fold=Folding.ALWAYS)
    model = prepare(open_source(to_onnx(sketch)).model)
    return len(decide_all(model, settings, without=AFFINE_PASSES).findings.plan.folds)


@pytest.mark.campaign
@pytest.mark.parametrize("group", range(_GROUPS))
def test_no_subset_of_weights_lets_more_norms_fold(group: int) -> None:
    short = 0
    for seed in range(group * _PER_GROUP, (group + 1) * _PER_GROUP):
        rng = random.Random(seed)  # noqa: S311 # no secret
        sketch = gated_stream(rng)
        possible = len(foldable_by_trial(sketch, feeds(rng)))
        if _planned(sketch) < possible:
            operators = [step.op_type for step in sketch.steps]
            assert operators.count(_CANCELLED) > 1, f"seed {seed}"
            short += 1
    assert short <= _MOST_SHORT * _PER_GROUP


@pytest.mark.parametrize("seed", range(12))
def test_what_is_planned_is_proved_and_computes_the_same(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 # no secret
    sketch = gated_stream(rng)
    given, model = feeds(rng), to_onnx(sketch)
    read = {value.name for value in model.graph.input}
    graph = RandomGraph(model, {n: feed for n, feed in given.items() if n in read}, Counter())
    assert check(graph, settings_of(seed)).failure is None
