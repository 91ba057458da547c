"""Small models of architectures of transformers keep the counts of docs/parity.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rows import read
from tests.parity.architecture_sizes import ARCHITECTURES
from tests.parity.architectures import TABLE, tried

ROWS = {row["architecture"]: row for row in read(TABLE)}


def test_every_architecture_has_a_row() -> None:
    assert list(ROWS) == list(ARCHITECTURES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cohere", "mbart", "segformer", "wav2vec2, stable norms"])
def test_an_architecture_has_the_counts_of_its_row(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="exports models of transformers")
    row = tried(name, tmp_path / "model.onnx")
    assert row.noise_ratio
    for field in ("called", "found", "layer_norms", "folds", "centrings", "left"):
        assert str(getattr(row, field)) == ROWS[name][field]
