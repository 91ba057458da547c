"""Find the defect in the model that made a stage fail."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import ModelError, UsageError
from onnxfold.model_io.sources import Source
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.shapes.validity import MALFORMED, complaint

_PLACES = ("node '", "value '", "loops ", "opset ", "function ")


@contextmanager
def error_context(source: Source) -> Iterator[None]:
    """Name the fault of an invalid ONNX model if a stage fails on it.

    Raises ModelError then; an error on a valid model is a defect and is passed on. A message about
    a part of the model is prefixed with the name of the file.
    """
    label = "the model" if source.path is None else model_io.show(source.path)
    try:
        yield
    except (ModelError, UsageError) as error:
        if str(error).startswith(_PLACES):
            raise type(error)(f"{label}: {error}") from error
        raise
    except MALFORMED as error:
        reason = complaint(source.model) or _complaint_of_copy(source.model) or _attribute(error)
        if reason is None:
            raise
        sentence = f"{label}: not valid ONNX: {model_io.one_line(reason)}"
        raise ModelError(sentence) from error


def _complaint_of_copy(model: ir.Model) -> str | None:
    """Return the fault of a model that shows once functions and skip-norms are split."""
    try:
        return complaint(prepare(model).model)
    except MALFORMED:
        return None


def _attribute(error: Exception) -> str | None:
    """Return onnx-ir's message about an attribute of the wrong type, which no schema excludes."""
    sentence = str(error)
    return sentence if isinstance(error, TypeError) and sentence.startswith("Attribute '") else None
