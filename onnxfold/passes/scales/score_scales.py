"""The scale of attention scores, 1 / sqrt(d), which runtimes expect where exporters write it.

ONNX Runtime fuses it into FusedMatMul, and its Attention fusion, OpenVINO's and TensorRT's match
MatMul, Mul or Div, (Add,) Softmax.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.model_facts import Fact
from onnxfold.graph.operands import operands
from onnxfold.graph.traversal import reached
from onnxfold.passes.scales.constant_operands import is_weight

# Operators that exporters write between a scale and Softmax; runtimes do not search beyond others.
_PRODUCTS = frozenset({"Einsum", "FusedMatMul", "MatMul"})
_BETWEEN = frozenset(
    "Add Cast Concat Div Expand Identity Mul Reshape Split Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)


_BEFORE_SOFTMAX: Fact[frozenset[ir.Node]] = Fact("nodes before Softmax")


def scales_scores(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Mul or Div is on a path to Softmax, in or before a product of two activations."""
    return node.op_type in ("Mul", "Div") and node in _BEFORE_SOFTMAX.of(view)


@_BEFORE_SOFTMAX.found_by
def _before_softmax(view: ModelInfo) -> frozenset[ir.Node]:
    """Return every node with a path to a Softmax through the allowed operators."""

    def back(each: ir.Node) -> list[ir.Node]:
        if each.op_type != "Softmax" and not _passes(view, each):
            return []
        return [node for value in operands(each) if (node := value.producer()) is not None]

    return frozenset(reached([n for n in view.nodes() if n.op_type == "Softmax"], back))


def _passes(view: ModelInfo, node: ir.Node) -> bool:
    if node.op_type in _PRODUCTS:
        return not any(is_weight(view, node, index) for index in range(len(node.inputs)))
    return node.op_type in _BETWEEN
