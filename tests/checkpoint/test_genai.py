"""The model builder of ONNX Runtime GenAI accepts a checkpoint with weightless norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfold.checkpoint import fold_checkpoint
from tests.checkpoint.packages import installed, run

PROGRAM = Path(__file__).parent / "genai_builder.py"


@pytest.fixture(scope="module")
def genai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package alone: its builder reads checkpoints with the transformers installed here."""
    return installed(tmp_path_factory.mktemp("genai"), "onnxruntime-genai")


@pytest.mark.slow
def test_the_builder_takes_a_weightless_checkpoint(genai: Path, tmp_path: Path) -> None:
    """What it builds of the two checkpoints gives logits that err as much from float64."""
    run(genai, PROGRAM, "make", tmp_path / "in")
    fold_checkpoint(tmp_path / "in", tmp_path / "out")
    errors = []
    for name in ("in", "out"):
        built = tmp_path / f"built-{name}"
        words = ["-i", tmp_path / name, "-o", built, "-p", "fp32", "-e", "cpu", "-c", tmp_path]
        run(genai, "-m", "onnxruntime_genai.models.builder", *words)
        errors.append(float(run(genai, PROGRAM, "error", tmp_path / "in", built).split()[-1]))
    assert errors[1] <= 2 * errors[0]
    assert errors[0] < 1e-4
