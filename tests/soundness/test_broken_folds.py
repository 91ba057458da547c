"""Random graphs detect a wrong law as well: the folds that depend on it compute a wrong result."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from onnxfold.operators.row import Operator
from tests.operators.mutants import ROLES, AlwaysZeroMean, Broken, NeverSeen, Watched
from tests.operators.rows import LAWS, transfer_for, with_transfer
from tests.soundness.checking import Settings, check, settings_of
from tests.soundness.random_graphs import sampled_graph

_GRAPHS, _UNCHANGED = 200, 60
# Roles that a graph cannot show, with the reason.
_NOT_SHOWN = {
    ("ConstantOfShape", "AlwaysZeroMean"): "a norm of equal constants stays",
    ("Identity", "AlwaysZeroMean"): "no norm reads one: the readers of its result have its operand",
    ("Shape", "AlwaysZeroMean"): "no norm reads integers",
    ("Size", "AlwaysZeroMean"): "no norm reads integers",
    ("Split", "WithoutGuard"): "where the part has room for the fiber it is the whole, and right",
}


def _fails(law: Operator, seed: int) -> bool:
    rng = random.Random(seed)  # noqa: S311 # no secret
    # Copies of weights allowed, so that a fold is rarely left out for its costs.
    settings: Settings = replace(settings_of(seed), allow_split_bytes=1 << 20, exclude=None)
    return check(sampled_graph(rng, law.key), settings).failure is not None


def _verdict(law: Operator, mutant: type[Broken], patch: pytest.MonkeyPatch) -> str:
    watched = Watched(transfer_for(law), mutant(transfer_for(law)))
    with_transfer(patch, law, watched)
    for seed in range(_GRAPHS):
        if _fails(law, seed):
            return "noticed"
        if seed >= _UNCHANGED and not watched.differed:
            return "says what the law says"
    return "missed"


def _name(law: Operator) -> str:
    return ".".join(filter(None, law.key))


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
