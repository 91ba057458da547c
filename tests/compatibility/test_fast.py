"""The bar, for what is quick to try: who takes the original takes the file of the default target.

`make test-compatibility` has all runtimes and tools.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.compatibility.exports import ARCHITECTURES
from tests.compatibility.matrix import DEFAULT, ORIGINAL, Row, come_apart, failures, run
from tests.compatibility.subjects import SUBJECTS

pytestmark = pytest.mark.slow

FAST = [subject for subject in SUBJECTS.values() if subject.fast]
# TorchScript and dynamo, LayerNormalization alone and RMSNormalization, half precision.
EXPORTS = [
    *(("vit", 17), ("bert", 17), ("bert", 18), ("gpt2", 18), ("llama", 23)),
    ("gpt2-float16", 18),
]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(run(FAST, EXPORTS, [DEFAULT]))


@pytest.mark.parametrize("name", [subject.name for subject in FAST])
def test_who_takes_the_original_takes_ours(name: str, rows: list[Row]) -> None:
    mine = [row for row in rows if row.subject == name]
    assert any(row.outcome == "same" for row in mine if row.target == ORIGINAL), mine
    assert failures(mine) == []


@pytest.mark.parametrize("name", [subject.name for subject in FAST if subject.tool])
def test_as_many_norms_stay_one_operator(name: str, rows: list[Row]) -> None:
    assert come_apart(row for row in rows if row.subject == name) == []


@pytest.mark.parametrize("name", [subject.name for subject in FAST if subject.typed])
def test_the_transformers_optimizer_fuses_no_less(name: str, rows: list[Row]) -> None:
    """In float32: of float16, opt_level 0 joins no norm that Casts are a part of (pipeline.md)."""
    made: dict[str, Counter[tuple[str, str]]] = {ORIGINAL: Counter(), DEFAULT: Counter()}
    for row in rows:
        if row.subject == name and ARCHITECTURES[row.architecture].dtype == "fp32":
            for kind, count in json.loads(row.facts)["fusions"].items():
                made[row.target][row.architecture, kind] += count
    assert made[ORIGINAL], "the original has nothing to fuse"
    assert made[ORIGINAL] - made[DEFAULT] == Counter()
