"""Attributes that several packages must interpret in the same way."""

import onnx_ir as ir


def keeps_dims(node: ir.Node) -> bool:
    """Whether a reduction keeps its axes, of size 1; for onnx and ONNX Runtime only 1 means yes."""
    return node.attributes.get_int("keepdims", 1) == 1
