"""The script of the long run runs, and its row is the sum of its chunks."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.soundness import long_run


@pytest.mark.campaign
def test_a_few_seeds_are_counted() -> None:
    tally = long_run.run_seeds(range(4))
    assert not tally.failures
    assert sum(tally.of("targets").values()) == 4


def test_the_row_of_a_run_is_the_sum_of_its_chunks() -> None:
    conditions = dict.fromkeys(long_run._CONDITIONS, "0")
    counts = dict.fromkeys(long_run._COUNTS, "2")
    families = dict.fromkeys(long_run._FAMILIES, "Add:1 Mul:3")
    common = {**conditions, **counts, **families, "code": "c", "graphs": "1000", "seconds": "1.5"}
    first = {**common, "first_seed": "0", "failures": "", "worst_float64": "1e-12"}
    second = {**common, "first_seed": "1000", "failures": "1001: off", "worst_float64": "2e-12"}
    row = asdict(long_run.total([second, first]))
    assert (row["first_seed"], row["graphs"], row["seconds"]) == (0, 2000, 3.0)
    assert (row["failures"], row["worst_float64"], row["folds"]) == ("1001: off", 2e-12, 4)
    assert row["laws"] == "Add:2 Mul:6"
