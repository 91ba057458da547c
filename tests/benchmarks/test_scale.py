"""benchmarks/scale.py at a size that takes seconds: every kind of row is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.gptj import Size
from benchmarks.rows import read

TINY = Size(width=128, layers=2, words=300)


@pytest.mark.campaign
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_model_is_copied_folded_shared_checked_and_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "_SIZES", {"tiny": TINY})
    words = ["--sizes", "tiny", "--check", "tiny", "--memory", "0.0012", "--layers", "2"]
    words += ["--runs", "1", "--folder", str(tmp_path / "models"), "--out", str(tmp_path / "a.csv")]
    assert scale.main(words) == 0
    rows = {row["what"]: float(row["value"]) for row in read(tmp_path / "a.csv")}
    assert rows["data files written"] == rows["data files read"] > 1
    assert 0.3 < rows["bytes that it writes / bytes read"] < 0.9  # projections are not changed
    assert rows["optimize --memory 0.0012: pieces of the verification"] > 1
    assert rows["noise ratio against float64"] < 4
    # The first reads a table, which quantizers take; after the last its beta would cost an Add.
    assert rows["norms folded"] == 1
    assert rows["peak resident memory"] > rows["anonymous resident memory"] > 0
    assert "optimize --no-check / copying" in capsys.readouterr().out
    assert not list((tmp_path / "models").iterdir())
