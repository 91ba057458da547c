"""Every line of the law table against numbers; a line without a sampler fails."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from onnxfold.operators.row import Operator
from tests.lanes import quick
from tests.operators.law_property import check_sample
from tests.operators.rows import LAWS
from tests.operators.sample import Draw
from tests.operators.samplers import SAMPLERS

_SAMPLES = 60
# What a line must have answered at least once for its test to mean anything.
_LINEAR_ANSWERS = frozenset({"carried", "equivariant", "refused"})
_ANSWERS = {
    ("", "Slice"): _LINEAR_ANSWERS | {"carried elsewhere"},  # gates: each a set, or several
    ("", "Split"): _LINEAR_ANSWERS | {"carried elsewhere"},
    ("", "Softmax"): {"invariant", "exact"},
    ("", "LogSoftmax"): {"invariant", "exact"},
    ("", "Shape"): {"invariant"},
    ("", "Size"): {"invariant"},
    ("", "ConstantOfShape"): {"zero mean", "refused"},
    ("onnxfold", "Center"): {"zero mean", "invariant", "exact"},
}
_ALWAYS_CARRIED = frozenset(
    "Add BiasAdd Expand GlobalAveragePool Identity Mean Neg ReduceMean ReduceSum Squeeze Sub Sum "
    "Transpose Unsqueeze".split()
)


def test_every_line_of_the_table_has_a_sampler_and_the_other_way_round() -> None:
    assert {law.key for law in LAWS} == set(SAMPLERS)


@pytest.mark.parametrize(
    "law",
    quick(LAWS, slow=lambda law: law.op_type == "DeformConv"),
    ids=lambda law: ".".join(filter(None, law.key)),
)
def test_what_the_law_says_is_what_the_numbers_do(law: Operator) -> None:
    key = law.key
    tally: Counter[str] = Counter()
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(f"{key} {seed}"))  # noqa: S311 # no secret
        tally.update(check_sample(SAMPLERS[key](draw), draw))
    wanted = set(_ANSWERS.get(key, _LINEAR_ANSWERS))
    if key[1] in _ALWAYS_CARRIED:
        wanted.discard("refused")
    assert all(tally[answer] > 0 for answer in wanted), tally
