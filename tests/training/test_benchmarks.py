"""benchmarks/training at a size that takes seconds: every row is written, and the claim holds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
pytest.importorskip("sklearn", reason="scikit-learn is missing: make test-training installs it")

from benchmarks.rows import read
from benchmarks.training import proposition2, step_time


def test_centred_weights_train_as_layer_norm_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    assert proposition2.main(["--epochs", "1", "--seeds", "1", "--out", str(out)]) == 0
    rows = {(row["dtype"], row["variant"]): float(row["difference"]) for row in read(out)}
    # Six steps of length 0.01 in which gradients below 1 err by the rounding of their sums.
    assert rows["float64", "centred weights"] <= 6 * 0.01 * 1e-12
    assert rows["float64", "rms_norm"] > 1e-6  # which is another training
    assert len(rows) == 8
    assert "float32 seed 0" in capsys.readouterr().out


def test_a_step_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    words = ["--rounds", "1", "--device", "cpu", "--widths", "16", "--rows", "4", "8"]
    assert step_time.main([*words, "--out", str(out)]) == 0
    assert [row["variant"] for row in read(out)] == 2 * [
        "layer_norm",
        "centred weights",
        "rms_norm",
    ]
    assert "16 8 rms_norm" in capsys.readouterr().out
