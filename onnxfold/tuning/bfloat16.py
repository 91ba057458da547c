"""A model in float16 as one in bfloat16, which has the range of float32 and eight bits of a number.

ONNX Runtime has kernels for bfloat16 on GPUs, but no converter.  Its float16 converter knows where
types change and which operators stay; weights are rounded anew from the float32 that they came of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import ml_dtypes
import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.graph.edit import change_constant, retype
from onnxfold.graph.traversal import all_graphs, all_nodes, graph_values

_HALF, _BRAIN = ir.DataType.FLOAT16, ir.DataType.BFLOAT16
_TYPES = ("to", "dtype")  # attributes that name a type


def check_float32(model: ir.Model) -> None:
    """Raise UsageError for a model that holds float16 already."""
    values = (value for graph in all_graphs(model) for value in graph_values(graph))
    if any(value.dtype is _HALF for value in values):
        raise UsageError("bf16 begins with float32, and the model holds float16")


def as_bfloat16(half: ir.Model, source: ir.Model) -> None:
    """Change float16 to bfloat16 in place; ``source`` is the model that was converted."""
    stored = dict(_stored(source))
    for value in half.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype is _HALF:
            change_constant(value, _rounded(value.const_value, stored, str(value.name)))
    for node in all_nodes(half):
        for attribute in list(node.attributes.values()):
            if attribute.type is ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if tensor.dtype is _HALF:
                    made = _rounded(tensor, stored, str(node.outputs[0].name))
                    node.attributes.add(ir.AttrTensor(attribute.name, made))
            elif attribute.name in _TYPES and attribute.value == _HALF.value:
                node.attributes.add(ir.AttrInt64(attribute.name, _BRAIN.value))
    for graph in all_graphs(half):
        for value in graph_values(graph):
            if value.dtype is _HALF:
                retype(value, _BRAIN)


def _stored(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield the tensors of a model by the names of weights and results."""
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            yield name, value.const_value
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.TENSOR:
                yield str(node.outputs[0].name), attribute.as_tensor()


def _rounded(
    tensor: ir.TensorProtocol, stored: Mapping[str, ir.TensorProtocol], name: str
) -> ir.TensorProtocol:
    """Return a tensor in bfloat16, from the float32 of its name where there is such a one."""
    before = stored.get(name)
    found = before is not None and before.shape.numpy() == tensor.shape.numpy()
    array = (before if found and before is not None else tensor).numpy()
    return ir.tensor(array.astype(ml_dtypes.bfloat16), dtype=_BRAIN, name=tensor.name)
