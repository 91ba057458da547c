"""The file that is served: the model as given, or optimized first.

Optimizing happens in a process of its own: it gives its memory back, and a server that reloads a
model under load is not held up by it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import ModelError, OnnxfoldError, UsageError, VerificationError
from onnxfold.passes.lower.finalize import METADATA_KEY

__all__ = ["is_optimized", "prepared"]

_BY_EXIT_CODE = {error.exit_code: error for error in (VerificationError, UsageError, ModelError)}
_PREFIX = "onnxfold: "


def is_optimized(path: Path) -> bool:
    """Whether onnxfold wrote this model; raises ModelError where it cannot be read."""
    model: ir.Model = model_io.load(path)
    return METADATA_KEY in model.metadata_props


def prepared(path: Path, folder: Path) -> Path:
    """Return the optimized model: `path` itself where it is one, else a new file within `folder`.

    Raises as :func:`onnxfold.optimize` does, with the remedy.
    """
    if is_optimized(path):
        return path
    output = Path(tempfile.mkdtemp(dir=folder)) / path.name
    words = ("-q", "optimize", str(path), "-o", str(output))
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "onnxfold", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        error = _BY_EXIT_CODE.get(done.returncode, OnnxfoldError)
        raise error(
            f"cannot optimize '{path}': {said[-1].removeprefix(_PREFIX)} "
            "(serve the model as it is with --no-optimize)"
        )
    return output
