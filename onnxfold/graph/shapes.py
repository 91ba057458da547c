"""Shapes of all values, with symbolic dimensions, without touching the model.

The inference is onnx's own, run on a skeleton of the model from which the large tensors are
left out.  Operators that onnx does not know stand in as a standard operator with the same
effect on shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from onnxfold.graph.dims import Dim, Shape

__all__ = ["graph_values", "infer_shapes"]

_LARGE_TENSOR_BYTES = 4096

# Contrib operators whose first output has the shape and type of their first input.
_SHAPE_PRESERVING = frozenset(
    {
        ("com.microsoft", "BiasAdd"),
        ("com.microsoft", "BiasGelu"),
        ("com.microsoft", "BiasSplitGelu"),
        ("com.microsoft", "FastGelu"),
        ("com.microsoft", "Gelu"),
        ("com.microsoft", "GroupNorm"),
        ("com.microsoft", "QuickGelu"),
        ("com.microsoft", "RotaryEmbedding"),
        ("com.microsoft", "SimplifiedLayerNormalization"),
        ("com.microsoft", "LayerNormalization"),
        ("", "SimplifiedLayerNormalization"),
    }
)


def infer_shapes(model: ir.Model) -> dict[ir.Value, Shape]:
    """Return the shape of every value whose rank can be known; the model is not changed."""
    skeleton = _skeleton(model)
    proto = ir.to_proto(skeleton)
    inferred = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            proto, check_type=False, strict_mode=False, data_prop=True
        )
    )
    shapes: dict[ir.Value, Shape] = {}
    for graph, twin in zip(model.graphs(), inferred.graphs(), strict=True):
        by_name = {value.name: value for value in graph_values(twin)}
        for value in graph_values(graph):
            shape = _declared(value) or _declared(by_name.get(value.name))
            better = _declared(by_name.get(value.name))
            if shape is not None:
                shapes[value] = _merge(shape, better)
    return shapes


def graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the inputs, initializers and node outputs of one graph, bodies left out."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from (output for output in node.outputs if output.name)


def _declared(value: ir.Value | None) -> Shape | None:
    if value is None:
        return None
    shape = value.const_value.shape if value.const_value is not None else value.shape
    if shape is None:
        return None
    return tuple(_dim(shape[axis]) for axis in range(len(shape)))


def _dim(dim: int | ir.SymbolicDimProtocol) -> Dim:
    if isinstance(dim, int):
        return dim
    return str(dim.value) if dim.value is not None else None


def _merge(declared: Shape, inferred: Shape | None) -> Shape:
    """Prefer integers, then declared symbols, then inferred ones."""
    if inferred is None or len(inferred) != len(declared):
        return declared
    return tuple(
        a if isinstance(a, int) else b if isinstance(b, int) else (a if a is not None else b)
        for a, b in zip(declared, inferred, strict=True)
    )


def _skeleton(model: ir.Model) -> ir.Model:
    """Copy the graph; large tensors become inputs, contrib operators their stand-ins."""
    skeleton = model.clone()
    for graph in skeleton.graphs():
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is None or tensor.nbytes <= _LARGE_TENSOR_BYTES:
                continue
            value.shape = ir.Shape(tensor.shape.numpy())
            value.type = ir.TensorType(tensor.dtype)
            value.const_value = None
            del graph.initializers[name]
            if graph is skeleton.graph and value not in graph.inputs:
                graph.inputs.append(value)
        for node in graph:
            _drop_large_attributes(node)
            if (node.domain, node.op_type) in _SHAPE_PRESERVING:
                _stand_in(node)
    return skeleton


def _drop_large_attributes(node: ir.Node) -> None:
    """Drop the tensor of a large Constant; its output declares the shape instead."""
    for attribute in list(node.attributes.values()):
        if attribute.type != ir.AttributeType.TENSOR or attribute.is_ref():
            continue
        tensor = attribute.as_tensor()
        if tensor.nbytes > _LARGE_TENSOR_BYTES and node.op_type == "Constant":
            output = node.outputs[0]
            output.shape, output.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
            del node.attributes[attribute.name]


def _stand_in(node: ir.Node) -> None:
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    if len(node.outputs) > 1 and not any(output.uses() for output in node.outputs[1:]):
        node.resize_outputs(1)
