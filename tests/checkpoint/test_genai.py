"""The model builder of ONNX Runtime GenAI takes a checkpoint whose norms have no weights left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfold.checkpoint import fold_checkpoint

PROGRAM = Path(__file__).parent / "genai_builder.py"


@pytest.fixture(scope="module")
def genai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package alone: its builder reads checkpoints with the transformers installed here."""
    folder = tmp_path_factory.mktemp("genai")
    quiet = ("--quiet", "--no-deps", "--no-compile")
    run(folder, "-m", "pip", "install", *quiet, "--target", folder, "onnxruntime-genai")
    return folder


def run(packages: Path, *words: str | Path) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
