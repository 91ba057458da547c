"""The scale of attention scores, 1 / sqrt(d), which runtimes look for where exporters put it.

ONNX Runtime makes FusedMatMul of it, and its Attention fusion, OpenVINO's and TensorRT's match
MatMul, Mul or Div, (Add,) Softmax.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.reached import reached
from onnxfold.passes.scales.constant_operands import is_weight

# What exporters write between a scale and Softmax; behind other layouts no runtime looks for it.
_PRODUCTS = frozenset({"Einsum", "FusedMatMul", "MatMul"})
_BETWEEN = frozenset(
    "Add Cast Concat Div Expand Identity Mul Reshape Split Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)


def scales_scores(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Mul or Div is on a way to Softmax: in or before a product of two activations."""
    if node.op_type not in ("Mul", "Div"):
        return False

    def onward(each: ir.Node) -> list[ir.Node]:
        readers = [use.node for output in each.outputs for use in output.uses()]
        return [node for node in readers if node.op_type == "Softmax" or _passes(view, node)]

    return any(each.op_type == "Softmax" for each in reached([node], onward))


def _passes(view: ModelInfo, node: ir.Node) -> bool:
    if node.op_type in _PRODUCTS:
        return not any(is_weight(view, node, index) for index in range(len(node.inputs)))
    return node.op_type in _BETWEEN
