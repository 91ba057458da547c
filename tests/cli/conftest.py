"""A model on disk for the command."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.builders import pre_norm_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(pre_norm_model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"
