"""Shapes that onnx's inference does not find: behind a Reshape to computed sizes.

onnx (1.23) gives such a result not even a rank, and nothing behind it a shape, or made-up symbols
for sizes that are numbers.  Exporters that write no value_info, such as paddle2onnx before 2, leave
whole transformers so, and simplifiers leave Reshape to [batch, channels, -1].  Here the sizes are
followed as :class:`SymbolicShapes` does, and operators that it has no rule for are inferred by
onnx one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onnxfold.graph.constants import whole_node
from onnxfold.graph.dims import Shape
from onnxfold.shapes.equivalents import DOMAIN, FUNCTIONS, is_doubtful, shape_equivalent
from onnxfold.shapes.symbolic import SymbolicShapes, Token

if TYPE_CHECKING:
    from onnxfold.graph.model_info import ModelInfo

__all__ = ["complete"]

_OWN_DOMAIN = "onnxfold"
# What onnx raises for operands that an operator does not take.
_NO_SHAPE = (
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)


def complete(view: ModelInfo) -> bool:
    """Find the shapes of results whose rank is unknown, and numbers behind a Reshape.

    Return whether a shape that ``view`` may have told before is another one now.
    """
    tokens: SymbolicShapes | None = None
    numbered: set[ir.Value | None] = set()
    for graph in view.graphs:
        for node in graph:
            if all(not output.name or output.shape is not None for output in node.outputs):
                if node.op_type == "Reshape" or not numbered.isdisjoint(node.inputs):
                    tokens = tokens or SymbolicShapes(view)
                    numbered.update(_numbered(view, tokens, node.outputs[0]))
                continue
            tokens = tokens or SymbolicShapes(view)
            for value, dims in _found(view, tokens, node):
                if view.shape(value) is not None:
                    continue
                value.shape = ir.Shape(dims)
                known = enumerate(dims)
                tokens.learn(value, tuple(_token(value, axis, dim) for axis, dim in known))
    return bool(numbered)


def _numbered(view: ModelInfo, tokens: SymbolicShapes, value: ir.Value) -> list[ir.Value]:
    """Put the numbers that are known in the place of symbols; return the value where there are."""
    shape = view.shape(value)
    if shape is None or all(isinstance(dim, int) for dim in shape):
        return []
    dims = tokens.dims(value) or shape
    found = tuple(
        known if isinstance(known, int) else dim for dim, known in zip(shape, dims, strict=True)
    )
    if found == shape:
        return []
    value.shape = ir.Shape(found)
    return [value]


def _token(value: ir.Value, axis: int, dim: Token | None) -> Token:
    return f"{value.name}@{axis}" if dim is None else dim


def _found(view: ModelInfo, tokens: SymbolicShapes, node: ir.Node) -> list[tuple[ir.Value, Shape]]:
    derived = tokens.dims(node.outputs[0])
    if derived is not None:
        names = _names(view, tokens, node)
        derived = tuple(names.get(dim, dim) for dim in derived)
    if node.domain == _OWN_DOMAIN:
        return [] if derived is None else [(output, derived) for output in node.outputs]
    if derived is not None and len(node.outputs) == 1:
        return [(node.outputs[0], derived)]
    return _inferred(view, node)


def _names(view: ModelInfo, tokens: SymbolicShapes, node: ir.Node) -> dict[Token, Token]:
    """Map sizes of the operands, where they have one name here and another in their shapes."""
    names: dict[Token, Token] = {}
    for operand in node.inputs:
        shape, dims = view.shape(operand), tokens.dims(operand)
        for name, token in zip(shape or (), dims or (), strict=False):
            if isinstance(name, str) and isinstance(token, str):
                names[token] = name
    return names


def _inferred(view: ModelInfo, node: ir.Node) -> list[tuple[ir.Value, Shape]]:
    """Ask onnx about one node; [] where an operand has no shape, or there is no answer."""
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    if any(attribute.type in graphs for attribute in node.attributes.values()):
        return []
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for operand in node.inputs:
        if operand is None:
            continue
        shape, dtype = view.shape(operand), operand.dtype
        if shape is None or dtype is None:
            return []
        if any(isinstance(dim, int) and dim < 0 for dim in shape):
            return []  # which onnx 1.23 may crash on
        name = operand.name or ""
        types[name] = onnx.helper.make_tensor_type_proto(dtype.value, shape)
        array = view.array(operand)
        if array is not None and array.dtype.kind in "iu":
            data[name] = onnx.numpy_helper.from_array(array, name)
    home = onnx.GraphProto()
    proto = shape_equivalent(node, home) or whole_node(node)
    types |= {info.name: info.type for info in home.input}
    sizes = [[d if isinstance(d, int) else 0 for d in view.shape(o) or ()] for o in node.inputs]
    if proto.domain not in ("", DOMAIN) or is_doubtful(proto, sizes):
        return []
    try:
        answers = _answers(view.opset, proto, types, data)
    except _NO_SHAPE:
        return []
    outputs = {output.name: output for output in node.outputs if output.name}
    return [
        (outputs[name], _dims(answer))
        for name, answer in answers.items()
        if name in outputs and answer.tensor_type.HasField("shape")
    ]


def _answers(
    opset: int,
    proto: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Return the types of the results of a standard operator or a call of a shape equivalent."""
    if proto.domain == DOMAIN:
        function = next(f for f in FUNCTIONS if f.name == proto.op_type)
        operands = [types[name] for name in proto.input]
        found = onnx.shape_inference.infer_function_output_types(function, operands, [])
        return dict(zip(proto.output, found, strict=True))
    schema = onnx.defs.get_schema(proto.op_type, opset, "")
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)


def _dims(answer: onnx.TypeProto) -> Shape:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in answer.tensor_type.shape.dim
    )
