"""Models after ONNX Runtime's transformers optimizer."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

__all__ = ["TORCH_IS_MISSING", "optimized"]

TORCH_IS_MISSING = "ONNX Runtime's transformers optimizer imports torch"


def optimized(model: onnx.ModelProto, kind: str, level: int, **options: Any) -> onnx.ModelProto:
    """Return the model as the optimizer leaves it; ``level`` is its session's, 0 for none.

    Skips the test where torch is missing and a session is wanted.
    """
    from onnxruntime.transformers import optimizer

    if level > 0:
        pytest.importorskip("torch", reason=TORCH_IS_MISSING)
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    made: onnx.ModelProto = optimizer.optimize_model(copy, kind, opt_level=level, **options).model
    return made
