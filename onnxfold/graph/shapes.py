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
    inferred = onnx.shape_inference.infer_shapes(
        _skeleton(model), check_type=False, strict_mode=False, data_prop=True
    )
    shapes: dict[ir.Value, Shape] = {}
    _read(model.graph, inferred.graph, shapes)
    return shapes


def graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the inputs, initializers and node outputs of one graph, bodies left out."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from (output for output in node.outputs if output.name)


def _bodies(node: ir.Node) -> Iterator[tuple[str, int, ir.Graph]]:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, 0, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from ((name, i, graph) for i, graph in enumerate(attribute.as_graphs()))


def _skeleton(model: ir.Model) -> onnx.ModelProto:
    """Serialise the model without its large tensors, which become typed inputs."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 8))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    if not any(entry.domain == "" for entry in proto.opset_import):
        proto.opset_import.add(domain="", version=1)
    for function in model.functions.values():
        proto.functions.append(ir.serde.serialize_function(function))
    _fill(proto.graph, model.graph)
    return proto


def _fill(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    proto.name = graph.name or "graph"
    listed = set()
    for value in graph.inputs:
        listed.add(value)
        proto.input.append(ir.serde.serialize_value(value))
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes <= _LARGE_TENSOR_BYTES:
            proto.initializer.append(ir.serde.serialize_tensor(tensor))
            proto.initializer[-1].name = value.name or ""
        elif tensor is not None and value not in listed:
            shape, dtype = tensor.shape.numpy(), tensor.dtype.value
            proto.input.append(onnx.helper.make_tensor_value_info(value.name or "", dtype, shape))
    outputs = set(graph.outputs)
    for node in graph:
        proto.node.append(_node(node))
        for output in node.outputs:
            if output.name and output not in outputs and output.shape is not None:
                proto.value_info.append(ir.serde.serialize_value(output))
    for value in graph.outputs:
        proto.output.append(ir.serde.serialize_value(value))


def _node(node: ir.Node) -> onnx.NodeProto:
    if (node.domain, node.op_type) in _SHAPE_PRESERVING:
        first = node.inputs[0]
        return onnx.helper.make_node(
            "Identity",
            [first.name or "" if first is not None else ""],
            [node.outputs[0].name or ""],
        )
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name or "")
    proto.overload = node.overload
    proto.input.extend(
        (operand.name or "") if operand is not None else "" for operand in node.inputs
    )
    proto.output.extend(output.name or "" for output in node.outputs)
    bodies = {(name, i): graph for name, i, graph in _bodies(node)}
    for name, attribute in node.attributes.items():
        if (name, 0) in bodies:
            written = proto.attribute.add(name=name, type=attribute.type.value)
            graphs = [graph for (key, _), graph in bodies.items() if key == name]
            for graph in graphs:
                _fill(
                    written.g if attribute.type == ir.AttributeType.GRAPH else written.graphs.add(),
                    graph,
                )
        elif not _is_large(attribute):
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
    return proto


def _is_large(attribute: ir.Attr) -> bool:
    """Whether the attribute is a large tensor, whose node's output declares the shape instead."""
    if attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
        return False
    return attribute.as_tensor().nbytes > _LARGE_TENSOR_BYTES


def _read(graph: ir.Graph, inferred: onnx.GraphProto, shapes: dict[ir.Value, Shape]) -> None:
    """Collect the shapes of a graph and of its bodies from the inferred twin."""
    protos = {info.name: info for infos in (inferred.value_info, inferred.output) for info in infos}
    for value in graph_values(graph):
        declared, found = _declared(value), _inferred(protos.get(value.name or ""))
        shape = declared if declared is not None else found
        if shape is not None:
            shapes[value] = _merge(shape, found)
    for node, twin in zip(graph, inferred.node, strict=True):
        for name, position, body in _bodies(node):
            for attribute in twin.attribute:
                if attribute.name == name:
                    single = attribute.type == onnx.AttributeProto.GRAPH
                    _read(body, attribute.g if single else attribute.graphs[position], shapes)


def _declared(value: ir.Value) -> Shape | None:
    shape = value.const_value.shape if value.const_value is not None else value.shape
    if shape is None:
        return None
    return tuple(_dim(shape[axis]) for axis in range(len(shape)))


def _dim(dim: int | ir.SymbolicDimProtocol) -> Dim:
    if isinstance(dim, int):
        return dim
    return str(dim.value) if dim.value is not None else None


def _inferred(info: onnx.ValueInfoProto | None) -> Shape | None:
    if info is None or not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in info.type.tensor_type.shape.dim
    )


def _merge(declared: Shape, inferred: Shape | None) -> Shape:
    """Prefer integers, then declared symbols, then inferred ones."""
    if inferred is None or len(inferred) != len(declared):
        return declared
    return tuple(
        a if isinstance(a, int) else b if isinstance(b, int) else (a if a is not None else b)
        for a, b in zip(declared, inferred, strict=True)
    )
