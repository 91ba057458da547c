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
from onnxfold.options import Target
from onnxfold.passes.lower.finalize import written_for

__all__ = ["is_for_kernels", "prepared"]

_BY_EXIT_CODE = {error.exit_code: error for error in (VerificationError, UsageError, ModelError)}
_PREFIX = "onnxfold: "


def is_for_kernels(path: Path) -> bool:
    """Whether onnxfold wrote this model for kernels; raises ModelError where it cannot be read."""
    model: ir.Model = model_io.load(path)
    return written_for(model) is Target.KERNELS


def prepared(path: Path, folder: Path) -> Path:
    """Return the model for kernels: `path` itself where it is one, else a file within `folder`.

    Raises as :func:`onnxfold.optimize` does, with the remedy.
    """
    if is_for_kernels(path):
        return path
    output = Path(tempfile.mkdtemp(dir=folder)) / path.name
    words = ("-q", "optimize", str(path), "-o", str(output), "--target", Target.KERNELS.value)
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
