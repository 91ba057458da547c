"""The benchmark of small models writes a row for each form, and its bound has no norms."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from benchmarks import break_even
from benchmarks.rows import RESULTS, read

DIGITS = Path("models") / "digits_vit" / "digits_vit.onnx"


@pytest.mark.campaign
def test_a_row_is_written_for_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    words = ["--models", "digits_vit", "--rounds", "1", "--folds", "1", "--out", str(out)]
    assert break_even.main(words) == 0
    rows = {row["form"]: row for row in read(out)}
    assert tuple(rows) == break_even.FORMS
    assert {row["norms"] for row in rows.values()} == {"9"}
    assert rows["layer"]["ratio"] == "1.0"
    assert float(rows["rms"]["checked_seconds"]) > 0
    assert rows["layer"]["fold_seconds"] == rows["none"]["fold_seconds"] == "0.0"
    assert "batch 8, tokens 0, none, rounds 1, milliseconds" in capsys.readouterr().out


def test_the_bound_has_no_norm(tmp_path: Path) -> None:
    assert break_even.without_norms(DIGITS, tmp_path / "none.onnx") == 9
    kinds = [node.op_type for node in ir.load(tmp_path / "none.onnx").graph]
    before = [node.op_type for node in ir.load(DIGITS).graph]
    assert kinds == [kind for kind in before if kind != "LayerNormalization"]


@pytest.mark.parametrize("form", ["rms", "crms"])
def test_a_kept_row_has_paid_only_where_it_saves(form: str) -> None:
    for row in read(RESULTS / "break_even.csv"):
        if row["form"] == form:
            assert bool(row["paid_after"]) == (float(row["ratio_25"]) > 1)
