"""What the tests of the running server share: files to serve, and one server for most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxfold
from tests.serving.server import models
from tests.serving.server.process import Server, serving

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "models" / "digits_vit" / "digits_vit.onnx"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that are served: the digits model, optimized, and one for each question."""
    folder = tmp_path_factory.mktemp("served")
    onnxfold.optimize(DIGITS, folder / "digits.onnx", target="kernels")
    for name in ("every_type", "cross_row", "failing", "two_inputs", "slow", "large"):
        models.write(getattr(models, name)(), folder / f"{name}.onnx")
    models.write(models.scaled(2.0), folder / "scaled.onnx")
    return folder


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    names = ("digits", "every_type", "cross_row", "failing", "two_inputs", "slow", "scaled")
    paths = [folder / f"{name}.onnx" for name in names]
    with serving(folder, *paths, "--no-optimize") as running:
        yield running
