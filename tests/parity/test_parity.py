"""One architecture, however it was exported and whichever tool has been at it: the same folds.

make.py writes the models, and ``python -m tests.parity.count`` counts.csv, the table of
docs/parity.md.
"""

from __future__ import annotations

from collections import defaultdict

import onnx
import pytest

import onnxfold
from tests.parity.count import FOLDER, Row, counted, read

ROWS = read()


def test_every_model_of_the_folder_is_counted() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == {row.stem for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.stem)
def test_the_counts_are_those_of_the_table(row: Row) -> None:
    assert counted(FOLDER / f"{row.stem}.onnx") == row


def test_every_export_and_tool_gives_the_same_folds() -> None:
    by_architecture: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for row in ROWS:
        by_architecture[row.architecture].add((row.layer_norms, row.folds, row.centrings))
    assert set(by_architecture) == {"bert", "gpt2", "opt", "vit"}
    assert all(len(counts) == 1 for counts in by_architecture.values()), by_architecture


def test_every_export_and_tool_moves_the_same_gammas_and_betas() -> None:
    moved: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in ROWS:
        moved[row.architecture].add((row.gammas, row.betas))
    assert all(len(counts) == 1 for counts in moved.values()), moved


@pytest.mark.parametrize(
    "stem",
    [
        "bert-dynamo23-onnxruntime",
        "gpt2-script14-onnxruntime",
        "opt-dynamo18-onnxsim",
        "vit-script14-onnxslim",
    ],
)
def test_a_rewritten_export_is_optimized_proved_and_verified(stem: str) -> None:
    result = onnxfold.optimize(onnx.load(FOLDER / f"{stem}.onnx"))
    assert result.changed
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed
