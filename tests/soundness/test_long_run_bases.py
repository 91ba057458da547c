"""The script of the long run over changes of basis runs, and changes what it is to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import rows
from tests.soundness import long_run_bases


@pytest.mark.campaign
def test_a_few_seeds_are_scaled_rotated_and_split(tmp_path: Path) -> None:
    results = tmp_path / "random_bases.csv"
    assert long_run_bases.main(["--graphs", "24", "--first", "1", "--results", str(results)]) == 0
    (row,) = rows.read(results)
    assert row["failures"] == ""
    for change in (*long_run_bases.CHANGES, "split_gammas", "refused"):
        assert int(row[change]) > 0, change
