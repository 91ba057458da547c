"""Shape inference: the types and shapes that a model omits."""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.shapes.inference import fill_types, strip_types
from onnxfold.shapes.missing_shapes import fill_shapes

__all__ = ["fill_shapes", "fill_types", "infer", "strip_types"]


def infer(model: ir.Model) -> ModelInfo:
    """Fill in the types and shapes that can be known, in place; return the facts of the model.

    Raises ModelError for sizes that no memory can hold.
    """
    better = fill_types(model)
    info = ModelInfo(model)
    return ModelInfo(model) if fill_shapes(info, better) else info
