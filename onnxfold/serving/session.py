"""Sessions of the server and the Triton repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.errors import ModelError, OnnxfoldError, first_cause
from onnxfold.runtime.library import check_providers, register, runtime_errors
from onnxfold.runtime.sessions import demand_optimizable

if TYPE_CHECKING:
    import onnxruntime as ort


def open_session(
    path: Path, *, name: str, library: str | None, threads: int = 0, providers: Sequence[str] = ()
) -> ort.InferenceSession:
    """Open a session on the file of the model `name`, by default on the CPU.

    ``library`` is the device whose kernels are registered, or None. Raises ModelError for a model
    that ONNX Runtime does not load, or on which its process would end, OnnxfoldError without ONNX
    Runtime, UsageError for missing providers, for which it would use the CPU.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise OnnxfoldError("serving needs ONNX Runtime: pip install 'onnxfold[ort]'") from error
    demand_optimizable(path)
    check_providers(providers)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if library is not None:
        register(options, library)
    try:
        return ort.InferenceSession(
            str(path), options, providers=list(providers) or ["CPUExecutionProvider"]
        )
    except runtime_errors() as error:
        raise ModelError(f"ONNX Runtime does not load '{name}': {first_cause(error)}") from error
