"""The kinds of models that the Python interface accepts, and how to return the same kind."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import UsageError


@dataclass(frozen=True, slots=True)
class Source:
    """A model as an onnx_ir model, its origin, and the conversion back."""

    model: ir.Model
    path: Path | None
    give_back: Callable[[ir.Model], Any]


def open_source(model: Any) -> Source:
    """Open a path, an onnx.ModelProto, an onnx_ir.Model, or a model of torch.onnx or graphsurgeon.

    Raises ModelError if it cannot be read, UsageError for any other type.
    """
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        return Source(model_io.load(path), path, model_io.materialise)
    if isinstance(model, ir.Model):
        return Source(model, None, lambda result: result)
    if isinstance(model, onnx.ModelProto):
        return Source(model_io.from_proto(model), None, model_io.materialise)
    kind = type(model)
    if kind.__name__ == "ONNXProgram" and kind.__module__.startswith("torch.onnx"):
        program = model.exported_program
        return Source(model.model, None, lambda result: kind(result, program))
    if kind.__module__.startswith("onnx_graphsurgeon"):
        import onnx_graphsurgeon as gs

        proto = gs.export_onnx(model)
        return Source(
            model_io.from_proto(proto),
            None,
            lambda result: gs.import_onnx(model_io.materialise(result)),
        )
    raise UsageError(
        f"an object of type {kind.__name__} is not a model; pass a path, an onnx.ModelProto, "
        "an onnx_ir.Model, a torch.onnx.ONNXProgram or an onnx_graphsurgeon.Graph"
    )
