"""What was wrong with a model that a stage stumbled over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onnxfold import model_io
from onnxfold.errors import ModelError
from onnxfold.graph.validity import MALFORMED, complaint
from onnxfold.sources import Source

__all__ = ["diagnosed"]


@contextmanager
def diagnosed(source: Source) -> Iterator[None]:
    """Name the fault of a model that is not valid ONNX where a stage stumbles over it.

    Raises ModelError then; what goes wrong with a valid model is a defect and passes as it is.
    """
    try:
        yield
    except MALFORMED as error:
        reason = complaint(source.model)
        if reason is None:
            raise
        label = "the model" if source.path is None else model_io.show(source.path)
        sentence = f"{label}: not valid ONNX: {model_io.one_line(reason)}"
        raise ModelError(sentence) from error
