"""BatchNormalization at inference: s x + t, with one factor and one summand per channel.

    P (s x + t) = s P x + P t = s P x      for sets of one channel, along which s and t are constant

Along channels s varies, so that P does not commute with it.
"""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.operators.families.transfer import Backward, Carried, Forward, refuse
from onnxfold.refusal import RefusalCode

_CHANNEL = 1
_BIAS, _MEAN = 2, 3


@dataclass(frozen=True, slots=True)
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
