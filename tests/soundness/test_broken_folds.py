"""Random graphs detect a wrong law as well: the folds that depend on it compute a wrong result."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from onnxfold.operators.row import Operator
from tests.operators.mutants import ROLES, AlwaysZeroMean, Broken, NeverSeen, Watched
from tests.operators.rows import LAWS, transfer_for, with_transfer
from tests.soundness.checking import Settings, check, planned, settings_of
from tests.soundness.random_graphs import sampled_graph

_GRAPHS, _UNCHANGED = 200, 60
# Where few graphs show that a reader is never seen: the seed of one that does, tried first.
_SHOWN_AT = {
    "Add": 4, "Sub": 4, "Sum": 34, "Mean": 34, "Neg": 4, "Identity": 13, "Cast": 39,
    "CastLike": 8, "Dropout": 51, "Where": 6, "Transpose": 20, "Reshape": 11, "Squeeze": 4,
    "Unsqueeze": 4, "Split": 3, "CumSum": 28, "Slice": 7, "Gather": 12, "GatherND": 54,
    "ScatterElements": 7, "Concat": 4, "Tile": 45, "Pad": 2, "MatMul": 2, "Gemm": 2, "Conv": 3,
    "ConvTranspose": 4, "Attention": 4, "AveragePool": 12, "GlobalAveragePool": 35, "Resize": 5,
    "Softmax": 41, "LogSoftmax": 41, "FusedMatMul": 2, "TransposeMatMul": 2, "BiasAdd": 14,
    "MultiHeadAttention": 4, "GroupQueryAttention": 3, "MatMulNBits": 16, "Center": 6,
}  # fmt: skip
# Roles that a graph cannot show, with the reason.
_NOT_SHOWN = {
    ("ConstantOfShape", "AlwaysZeroMean"): "a norm of equal constants stays",
    ("Identity", "AlwaysZeroMean"): "no norm reads one: the readers of its result have its operand",
    ("Shape", "AlwaysZeroMean"): "no norm reads integers",
    ("Size", "AlwaysZeroMean"): "no norm reads integers",
    ("Split", "WithoutGuard"): "where the part has room for the fiber it is the whole, and right",
}


def _verdict(law: Operator, mutant: type[Broken], patch: pytest.MonkeyPatch) -> str:
    watched = Watched(transfer_for(law), mutant(transfer_for(law)))
    with_transfer(patch, law, watched)
    differed, first = False, _SHOWN_AT.get(law.op_type, 0) if mutant is NeverSeen else 0
    for seed in dict.fromkeys((first, *range(_GRAPHS))):
        graph = sampled_graph(random.Random(seed), law.key)  # noqa: S311 # no secret
        # Copies of weights allowed, so that a fold is rarely left out for its costs.
        settings: Settings = replace(settings_of(seed), allow_split_bytes=1 << 20, exclude=None)
        watched.differed = False
        outcome = planned(graph, settings)
        if watched.differed and outcome.failure is None:  # otherwise there is nothing to notice
            outcome = check(graph, settings)
        if outcome.failure is not None:
            return "noticed"
        differed |= watched.differed
        if seed >= _UNCHANGED and not differed:
            return "says what the law says"
    return "missed"


def _name(law: Operator) -> str:
    return ".".join(filter(None, law.key))


@pytest.mark.campaign
@pytest.mark.parametrize("mutant", [AlwaysZeroMean, NeverSeen], ids=lambda mutant: mutant.__name__)
@pytest.mark.parametrize("law", LAWS, ids=_name)
def test_a_fold_that_rests_on_a_broken_line_is_noticed(
    law: Operator, mutant: type[Broken], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (law.op_type, mutant.__name__) in _NOT_SHOWN:
        return
    assert _verdict(law, mutant, monkeypatch) != "missed"


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=_name)
def test_every_role_of_a_broken_line_is_noticed(
    law: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = {mutant.__name__: _verdict(law, mutant, monkeypatch) for mutant in ROLES}
    missed = {name for name, verdict in verdicts.items() if verdict == "missed"}
    assert not {(law.op_type, name) for name in missed} - set(_NOT_SHOWN)
