"""BatchNormalization at inference: s x + t, with one factor and one summand per channel.

    P (s x + t) = s P x + P t = s P x      for sets of one channel, along which s and t are constant

Along channels s varies, so that P does not commute with it.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.constants import Float64
from onnxfold.operators.families.transfer import Backward, Carried, Forward, refuse
from onnxfold.refusal import RefusalCode

_CHANNEL = 1
_BIAS, _MEAN = 2, 3


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


class BatchNorm:
    """Along other axes than channels P is carried into x, and takes bias and mean to 0."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if output or not infers(node):
            return refuse(RefusalCode.ACTIVATION, node, "may run in training mode")
        if _CHANNEL in fiber.axes:
            sentence = "multiplies by values that vary along the normalized elements"
            return refuse(RefusalCode.VARIES_ALONG_FIBER, node, sentence)
        return Carried(((0, fiber), (_BIAS, Fiber(())), (_MEAN, Fiber(()))))

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        known = index == 0 and infers(node) and _CHANNEL not in fiber.axes
        return ((0, fiber),) if known else None


def infers(node: ir.Node) -> bool:
    """Whether a BatchNormalization runs at inference, with numbers per channel."""
    spatial, trains = (
        node.attributes.get_int(name, default)
        for name, default in (("spatial", 1), ("training_mode", 0))
    )
    return spatial == 1 and not trains and len(node.outputs) == 1
