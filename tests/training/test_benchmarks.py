"""benchmarks/training at a size that takes seconds: every row is written, and the claim holds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
pytest.importorskip("sklearn", reason="scikit-learn is missing: make test-training installs it")

import torch

from benchmarks.rows import RESULTS, read
from benchmarks.training import centring, data, forms, inexact, language, proposition2, step_time


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
    assert "rms_norm, float32, seed 0, epoch 1, difference" in capsys.readouterr().out


def test_a_step_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    words = ["--rounds", "1", "--device", "cpu", "--widths", "16", "--rows", "4", "8"]
    assert step_time.main([*words, "--out", str(out)]) == 0
    assert [row["variant"] for row in read(out)] == 2 * [
        "layer_norm",
        "centred weights",
        "rms_norm",
    ]
    assert "rms_norm, width 16, rows 8, milliseconds" in capsys.readouterr().out


def test_angles_and_fine_tuning_write_rows_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        name: ["a small text to learn from, again " * 200] for name in ("news", language.TUNED)
    }
    monkeypatch.setattr(data, "brown", lambda _: texts)
    monkeypatch.setattr(language, "RATE", 0.03)  # of fine-tuning: a tenth
    out = tmp_path / "language.csv"
    assert language.main(["--scale", "tiny", "--seeds", "1", "--out", str(out)]) == 0
    rows = {row["setting"]: row for row in read(out)}
    assert len(rows) == 12
    after = {name.partition(",")[0]: float(row["loss"]) for name, row in rows.items()}
    losses = [after[name] for name in ("layer_norm", "centred weights")]
    # Two steps of Adam with length 3e-3 in float32: some 1e3 roundings of 6e-8, and of 5 digits.
    assert abs(losses[0] - losses[1]) <= 1e-4
    assert abs(after["layer_norm"] - after["keep"]) > 1e-5, "dropout leaves a mean"
    assert after["keep"] != after["baked"], "weights of a baked model do not stay centered"
    before = {name: float(row["loss"]) for name, row in rows.items() if "before" in name}
    equal = ("layer_norm", "centred weights", "keep", "baked")
    spread = [before[f"{name}, before fine-tuning"] for name in equal]
    assert max(spread) - min(spread) <= 1e-5  # the rounding of the row, in evaluation
    assert rows["keep, after fine-tuning"]["folded_norms"] == "3"
    assert rows["rms_norm, after fine-tuning"]["folded_norms"] == "0"
    angles = read(tmp_path / "angles.csv")
    assert {row["variant"] for row in angles} == {"layer_norm", "rms_norm"}
    assert all(0 <= float(row["angle_uniform"]) <= 180 for row in angles)
    assert (tmp_path / "angles.svg").read_text().startswith("<?xml")


def test_what_every_part_of_a_deep_net_reads_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(centring, "NETS", ((3, False), (14, True)))
    out = tmp_path / "rows.csv"
    words = ["--scale", "tiny", "--seeds", "1", "--out", str(out)]
    assert centring.main(words) == 0
    rows = read(out)
    at = {(r["depth"], r["what"], r["variant"]): [] for r in rows}
    for row in rows:
        at[row["depth"], row["what"], row["variant"]].append(int(row["at"]))
    shallow, deep = [0, 1, 2], [0, 1, 3, 4, 6, 7, 9, 10, 12, 13]
    assert len(at) == 2 * 3 * 3
    assert all(found == (shallow if key[0] == "3" else deep) for key, found in at.items())
    first = [row for row in rows if row["what"] == "linear" and row["at"] == "0"]
    assert {row["length"] for row in first if row["depth"] == "3"} == {first[0]["length"]}, "images"
    assert "depth 14, residual True, rms_norm with beta, seed 0" in capsys.readouterr().out
    assert centring.main(words) == 0
    assert capsys.readouterr().out == "", "a training that is in the file is run again"
    assert read(out) == rows


def test_what_a_part_reads_is_measured_as_defined() -> None:
    x = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.0, 0.0]])
    found = centring.read_by(x)
    assert found["length"] == round((5 + 2**0.5) / 3, 5)
    assert found["mean"] == 1.5
    assert found["share"] == round((2 * 3.5**2 / 25 + 1) / 2, 6), "a zero vector has no direction"


def test_the_forms_of_the_norms_train_as_one(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    assert forms.main(["--scale", "tiny", "--seeds", "1", "--out", str(out)]) == 0
    last = {row["variant"]: row for row in read(out)}
    assert list(last) == [
        "layer_norm",
        "centred weights",
        "crms_norm",
        "rms_norm with beta",
        "none",
    ]
    wanted = float(last["layer_norm"]["held_out_loss"])
    for name in ("centred weights", "crms_norm"):
        # Two steps of Adam of 2e-3 each in float32, and of 5 digits.
        assert abs(float(last[name]["held_out_loss"]) - wanted) <= 1e-4
    assert abs(float(last["rms_norm with beta"]["held_out_loss"]) - wanted) > 1e-4
    assert all(float(row["milliseconds"]) > 0 for row in last.values())
    assert last["layer_norm"]["ratio"] == "1.0"


def test_inexact_trainings_write_a_row_for_each_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    words = ["--scale", "tiny", "--seeds", "1", "--out", str(out)]
    assert inexact.main([*words, "--tasks", "translation", "digits, post-LN"]) == 0
    rows = {(row["task"], row["variant"], row["step"]): row for row in read(out)}
    assert len(rows) == 2 * 2 * len(inexact.VARIANTS)
    losses = {name: float(rows["translation", name, "2"]["loss"]) for name in inexact.VARIANTS}
    # The mean of two losses of size 5 in float32, and of 5 digits.
    assert abs(losses["layer_norm"] - losses["recentre"]) <= 1e-4
    assert abs(losses["layer_norm"] - losses["keep"]) > 1e-4, "dropout leaves a mean"
    folded = {name: row["folded_norms"] for (task, name, _), row in rows.items() if "," not in task}
    assert folded == dict.fromkeys(inexact.VARIANTS, "3") | {"layer_norm": "0", "rms_norm": "0"}
    forced = rows["digits, post-LN", "keep", "2"]
    assert (forced["norms"], forced["folded_norms"], forced["forced_norms"]) == ("2", "0", "2")
    assert "norms 3, folded_norms 3, forced_norms 0, loss" in capsys.readouterr().out
    assert (tmp_path / "rows.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", ["proposition2", "step_time"])
def test_the_kept_rows_have_their_figure(name: str) -> None:
    assert read(RESULTS / f"training_{name}.csv")
    assert (RESULTS / f"training_{name}.svg").read_text().startswith("<?xml")
