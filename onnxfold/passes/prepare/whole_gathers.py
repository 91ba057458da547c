"""Gathers of all elements of a flattened tensor in their order, which are Reshapes of it.

dynamo writes those for as_strided, in which its average pooling ends.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import constant_tensor, node_label
from onnxfold.graph.array_types import Array
from onnxfold.graph.edit import sweep
from onnxfold.graph.operands import known_operand, known_tensor, producer_of
from onnxfold.graph.traversal import all_nodes
from onnxfold.passes.prepare.split_skip_norms import Builder


def reshape_whole(model: ir.Model) -> tuple[str, ...]:
    """Replace such Gathers, in place, where the shape of what they read is known; name them."""
    flattened = {node: flat for node in all_nodes(model) if (flat := _flattened(node)) is not None}
    builder = Builder(model)
    for node, flat in flattened.items():
        call = builder.at(node)
        sizes = ir.tensor(_indices(node).shape, dtype=ir.DataType.INT64)
        (shape,) = call.emit("Constant", (), value=sizes)
        (whole,) = call.emit("Reshape", (flat.inputs[0], shape))
        call.finish({0: whole})
    sweep(flattened.values())
    return tuple(map(node_label, flattened))


def _flattened(node: ir.Node) -> ir.Node | None:
    """Return the Reshape to a vector of which a node picks each element in its place."""
    if node.op_type != "Gather" or node.domain or node.attributes.get_int("axis", 0) != 0:
        return None
    flat, indices = producer_of(node.inputs[0]), constant_tensor(node.inputs[1])
    if flat is None or flat.op_type != "Reshape" or flat.domain or indices is None:
        return None
    vector = indices.size > 0 and flat.outputs[0].shape == ir.Shape([indices.size])
    in_order = vector and np.array_equal(_indices(node).reshape(-1), np.arange(indices.size))
    return flat if in_order else None


def _indices(node: ir.Node) -> Array:
    return known_tensor(known_operand(node, 1)).numpy()
