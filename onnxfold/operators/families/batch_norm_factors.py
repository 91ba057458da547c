"""The numbers of a BatchNormalization at inference: s x + t per channel."""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Float64
from onnxfold.operators.families.batch_norm import infers


def channel_factors(view: ModelInfo, node: ir.Node) -> tuple[Float64, Float64] | None:
    """Return s and t over axis 1 of a BatchNormalization of constants, or None if unknown."""
    arrays = [view.array(operand) for operand in node.inputs[1:5]]
    known = [array.astype(np.float64) for array in arrays if array is not None]
    if not infers(node) or len(known) != 4 or len({array.shape for array in known}) > 1:
        return None
    if view.rank(node.inputs[0]) is None:
        return None
    scale, bias, mean, variance = known
    epsilon = np.float32(node.attributes.get_float("epsilon", 1e-5))  # as every attribute is
    factor = scale / np.sqrt(variance + np.float64(epsilon))
    shift = bias - mean * factor
    return (factor, shift) if np.all(np.isfinite((factor, shift))) else None
