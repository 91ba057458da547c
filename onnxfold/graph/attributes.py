"""Attributes whose meaning several parts must read alike."""

import onnx_ir as ir


def keeps_dims(node: ir.Node) -> bool:
    """Whether a reduction keeps its axes, of size 1; onnx and ONNX Runtime take 1 alone for yes."""
    return node.attributes.get_int("keepdims", 1) == 1
