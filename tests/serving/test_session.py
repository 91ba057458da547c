"""How the server opens a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfold.errors import UsageError
from onnxfold.serving.session import open_session

_MODEL = Path(__file__).parents[2] / "models" / "digits_vit" / "digits_vit.onnx"


def test_a_provider_that_is_not_there_is_refused() -> None:
    """ONNX Runtime would serve on the CPU, with a warning alone."""
    assert open_session(_MODEL, name="m", library=None).get_inputs()
    with pytest.raises(UsageError, match="Nix"):
        open_session(_MODEL, name="m", library=None, providers=["Nix"])
