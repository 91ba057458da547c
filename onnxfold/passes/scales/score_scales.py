"""The scale of attention scores, 1 / sqrt(d), which runtimes look for where exporters put it.

ONNX Runtime makes FusedMatMul of it, and its Attention fusion, OpenVINO's and TensorRT's match
MatMul, Mul or Div, (Add,) Softmax.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo

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
    seen = {node}
    waiting = [node]
    while waiting:
        for output in waiting.pop().outputs:
            for use in output.uses():
                if use.node.op_type == "Softmax":
                    return True
                if use.node not in seen and _passes(view, use.node):
                    seen.add(use.node)
                    waiting.append(use.node)
    return False


def _passes(view: ModelInfo, node: ir.Node) -> bool:
    if node.op_type in _PRODUCTS:
        return all(view.tensor(operand) is None for operand in node.inputs)
    return node.op_type in _BETWEEN
