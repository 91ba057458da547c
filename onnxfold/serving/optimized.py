"""The served file: the optimized model, or a copy of the given one.

A session maps the external data of its model. It would answer with anything written into that file
later, and crash if the file is truncated: so the file is private.

Optimization runs in a separate process: its memory is freed, and a server that reloads a model
under load is not delayed.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import ModelError, OnnxfoldError
from onnxfold.fleet import optimized_apart
from onnxfold.pipeline.finalize import written_for
from onnxfold.target import Target


def is_for_kernels(path: Path) -> bool:
    """Whether onnxfold wrote this model for kernels; raises ModelError if it cannot be read."""
    model: ir.Model = model_io.load(path)
    target = written_for(model)
    return target is not None and target.traits.calls


@contextmanager
def served_file(path: Path, folder: Path, *, optimize: bool) -> Iterator[Path]:
    """Yield a private file within `folder`, which is deleted at the end of the block.

    A session opened within the block keeps what it needs. The model is first optimized for kernels
    if requested and not already done by onnxfold. Raises as :func:`onnxfold.optimize` does, with
    the remedy, and ModelError if it cannot be copied.
    """
    own = Path(tempfile.mkdtemp(dir=folder))
    try:
        served = own / path.name
        if optimize and not is_for_kernels(path):
            _optimize(path, served)
        else:
            _copy(path, served)
        yield served
    finally:
        shutil.rmtree(own)


def _copy(path: Path, copy: Path) -> None:
    model = model_io.load(path)
    try:
        for name, file in model_io.data_files(path).items():
            (copy.parent / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy.parent / name)
        shutil.copyfile(path, copy)
    except OSError as error:
        raise ModelError(
            f"cannot copy '{path}' to serve it: {error.strerror}; TMPDIR names another folder"
        ) from error
    model_io.check_unchanged(model)


def _optimize(path: Path, output: Path) -> None:
    try:
        optimized_apart(path, output, ("--target", Target.KERNELS.value))
    except OnnxfoldError as error:
        remedy = "(serve the model as it is with --no-optimize)"
        raise type(error)(f"cannot optimize '{path}': {error} {remedy}") from error
