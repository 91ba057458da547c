"""Read-only questions about a model: producers, readers, constants, shapes."""

from onnxfold.graph.constants import FLOATS, constant_tensor
from onnxfold.graph.dims import ONE, Dim, Extent, Shape, extent
from onnxfold.graph.fiber import AxisBlock, Fiber, Part, follow_reshape, whole_axes
from onnxfold.graph.model_info import ModelInfo, Reader, keeps_dims, node_label, operator

__all__ = [
    "FLOATS",
    "ONE",
    "AxisBlock",
    "Dim",
    "Extent",
    "Fiber",
    "ModelInfo",
    "Part",
    "Reader",
    "Shape",
    "constant_tensor",
    "extent",
    "follow_reshape",
    "keeps_dims",
    "node_label",
    "operator",
    "whole_axes",
]
