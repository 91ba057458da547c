"""The benchmark of measurements runs, and keeps what it measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.geometry import BAR, measured
from benchmarks.rows import RESULTS, read

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_of_both_sessions() -> None:
    model = ROOT / "models" / "digits_vit" / "digits_vit.onnx"
    row = measured(model, batch=2, length=4, threads=1, rounds=1)
    assert row.norms == 9
    assert min(row.plain_s, row.instrumented_s, row.sums_s) >= 0.0


def test_the_kept_row_of_bert_holds_the_bar() -> None:
    rows = [row for row in read(RESULTS / "geometry.csv") if row["model"] == "bert-base"]
    assert rows
    assert all(float(row["ratio"]) <= BAR for row in rows)
