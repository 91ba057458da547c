"""Sessions of ONNX Runtime on one thread of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from onnxfold.runtime.library import register

__all__ = ["executed", "outputs", "session"]

_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def session(
    model: onnx.ModelProto | Path,
    *,
    level: str = "all",
    written: Path | None = None,
    kernels: bool = False,
) -> ort.InferenceSession:
    """Load a model or a file; ``written``: where to write what the session executes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = _LEVELS[level]
    if written is not None:
        options.optimized_model_filepath = str(written)
    if kernels:
        register(options)
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def outputs(
    model: onnx.ModelProto | Path, feeds: Mapping[str, Any], **options: Any
) -> list[npt.NDArray[Any]]:
    """Return what a session with these options computes."""
    return [np.asarray(each) for each in session(model, **options).run(None, dict(feeds))]


def executed(model: onnx.ModelProto | Path, folder: Path, **options: Any) -> onnx.ModelProto:
    """Return the model as a session executes it, which is written into the folder."""
    written = folder / "session.onnx"
    session(model, written=written, **options)
    return onnx.load(written, load_external_data=False)
