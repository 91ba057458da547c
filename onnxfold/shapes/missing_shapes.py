"""Shapes that onnx's inference misses: downstream of a Reshape or Slice to computed sizes.

onnx (1.23) does not even infer a rank for such a result, and downstream neither shapes nor, for
known numbers, more than made-up symbols. Exporters that write no value_info, such as paddle2onnx
before 2, leave whole transformers without shapes, and simplifiers leave Reshape to [batch,
channels, -1]. Sizes are followed here as :class:`SymbolicShapes` does, and operators without a rule
there are inferred by onnx one by one. Bodies go first, because their results determine the shapes
of the results of If, Loop and Scan.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.graph.constants import whole_node
from onnxfold.graph.dims import Dim, Shape
from onnxfold.graph.traversal import bodies, declared_shape
from onnxfold.shapes.body_shapes import DemandedRanks, body_results, fill_body
from onnxfold.shapes.equivalents import (
    DOMAIN,
    FUNCTIONS,
    hide,
    is_doubtful,
    known_sizes,
    shape_equivalent,
)
from onnxfold.shapes.inference import is_unnamed
from onnxfold.shapes.named_sizes import Size, own_names
from onnxfold.shapes.row_wise import assume_rows
from onnxfold.shapes.symbolic import SymbolicShapes

if TYPE_CHECKING:
    from onnxfold.graph.model_info import ModelInfo

_OWN_DOMAIN = "onnxfold"
# Errors that onnx raises for operands that an operator does not accept.
_NO_SHAPE = (
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)


def fill_shapes(view: ModelInfo, known: Collection[ir.Value] = ()) -> bool:
    """Infer shapes of results of unknown rank, and numbers and names downstream of a Reshape.

    ``known``: values about which more is known than when the shapes downstream were found. Return
    whether a shape changed that ``view`` may have returned before.
    """
    assume_rows(view)
    filling = _Filling(view, known)
    filling.graph(view.model.graph)
    return filling.changed


class _Filling:
    """One pass over a model, bodies first."""

    def __init__(self, view: ModelInfo, known: Collection[ir.Value]) -> None:
        self._view = view
        self._symbolic: SymbolicShapes | None = None
        self._demanded = DemandedRanks(view)
        self._better: set[ir.Value | None] = set(known)
        self.changed = False

    def graph(self, graph: ir.Graph) -> None:
        for node in graph:
            if bodies(node):
                fill_body(self._view, node, partial(self._bodies, node))
            self._node(node)

    def _bodies(self, node: ir.Node) -> None:
        self._symbolic = None  # its knowledge may be outdated
        for _, _, body in bodies(node):
            self.graph(body)

    def _node(self, node: ir.Node) -> None:
        view, better = self._view, self._better
        unknown = any(output.name and output.shape is None for output in node.outputs)
        if unknown:
            symbolic = self._shapes()
            for value, dims in chain(_found(view, symbolic, node), self._demanded.shapes(node)):
                if view.shape(value) is not None:
                    continue
                _set_shape(symbolic, value, dims, dims)
                better.add(value)  # a file may declare only ranks downstream
        if any(output.name and output.type is None for output in node.outputs):
            _fill_types(self._shapes(), view.opset, node)
        may_be_better = not better.isdisjoint(node.inputs) or _reads_sizes(node)
        if bodies(node) or (may_be_better and not unknown):
            found = _improved(view, self._shapes(), node)
            better.update(found)
            self.changed = self.changed or bool(found)

    def _shapes(self) -> SymbolicShapes:
        self._symbolic = self._symbolic or SymbolicShapes(self._view)
        return self._symbolic


def _reads_sizes(node: ir.Node) -> bool:
    """Whether a node reads computed sizes or bounds, or -1, which onnx may not follow."""
    return node.op_type in ("ConstantOfShape", "Reshape") or any(
        operand is not None
        and operand.dtype is not None
        and operand.dtype.is_integer()
        and operand.producer() is not None
        for operand in node.inputs[1:]
    )


def _without_own_names(value: ir.Value, shape: Shape) -> Shape:
    """Return a shape without the names of sizes of which only the rank was known before."""
    own = own_names(value, len(shape))
    return tuple(None if dim == name else dim for dim, name in zip(shape, own, strict=True))


def _improved(view: ModelInfo, symbolic: SymbolicShapes, node: ir.Node) -> list[ir.Value]:
    """Replace made-up symbols by numbers and names; return the changed values."""
    shapes = {value: declared_shape(value) or () for value in node.outputs if value.name}
    answers: dict[ir.Value, Shape] | None = None
    changed = []
    for value, shape in shapes.items():
        if all(isinstance(dim, int) for dim in shape):
            continue
        dims = symbolic.dims(value) or shape
        found = _refined(_without_own_names(value, shape), dims)
        unknown = any(map(is_unnamed, found))
        if unknown and answers is None and symbolic.derived(node, value) is None:
            answers = dict(_inferred(view.opset, symbolic, node))
        found = _refined(found, (answers or {}).get(value, found))
        if found != shape:
            _set_shape(symbolic, value, found, _refined(dims, found))
            view.forget_shape(value)
            changed.append(value)
    return changed


def _refined(shape: Shape, other: Shape) -> Shape:
    """Return a shape with the sizes that another knows better: numbers, and real names."""
    if len(shape) != len(other):
        return shape
    return tuple(map(_better, shape, other))


def _better(old: Dim, new: Dim) -> Dim:
    if new is None or isinstance(old, int):
        return old
    return new if isinstance(new, int) or is_unnamed(old) else old


def _set_shape(symbolic: SymbolicShapes, value: ir.Value, shape: Shape, dims: Shape) -> None:
    """Write a shape, in which unknown sizes get names that other values can share."""
    own = own_names(value, len(dims))
    sizes = tuple(name if dim is None else dim for name, dim in zip(own, dims, strict=True))
    symbolic.learn(value, sizes)
    written = (size if dim is None else dim for dim, size in zip(shape, sizes, strict=True))
    value.shape = ir.Shape(written)


def _found(
    view: ModelInfo, symbolic: SymbolicShapes, node: ir.Node
) -> list[tuple[ir.Value, Shape]]:
    derived = symbolic.dims(node.outputs[0])
    if derived is not None:
        names = _names(view, symbolic, node)
        derived = tuple(names.get(dim, dim) for dim in derived)
    if node.domain == _OWN_DOMAIN:
        return [] if derived is None else [(output, derived) for output in node.outputs]
    if derived is not None and len(node.outputs) == 1:
        return [(node.outputs[0], derived)]
    return _inferred(view.opset, symbolic, node)


def _fill_types(symbolic: SymbolicShapes, opset: int, node: ir.Node) -> None:
    """Infer element types of results by onnx, which enters no body of an unknown operator.

    Shapes downstream need them.
    """
    for value, answer in _answers(opset, symbolic, node).items():
        if value.type is None:
            value.type = ir.TensorType(ir.DataType(answer.tensor_type.elem_type))


def _names(view: ModelInfo, symbolic: SymbolicShapes, node: ir.Node) -> dict[Size, Size]:
    """Map the names of operand sizes here to the names in their shapes."""
    names: dict[Size, Size] = {}
    for operand in node.inputs:
        shape, dims = view.shape(operand), symbolic.dims(operand)
        for name, size in zip(shape or (), dims or (), strict=False):
            if isinstance(name, str) and isinstance(size, str):
                names[size] = name
    return names


def _inferred(opset: int, symbolic: SymbolicShapes, node: ir.Node) -> list[tuple[ir.Value, Shape]]:
    """Ask onnx for the shapes of one node; [] if unknown."""
    if bodies(node):
        return body_results(node, opset)
    answers = _answers(opset, symbolic, node).items()
    return [(value, _dims(told)) for value, told in answers if told.tensor_type.HasField("shape")]


def _answers(opset: int, symbolic: SymbolicShapes, node: ir.Node) -> dict[ir.Value, onnx.TypeProto]:
    """Ask onnx about one node; {} if unknown, or if an operand's shape is."""
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for operand in node.inputs:
        if operand is None:
            continue
        shape, dtype = declared_shape(operand), operand.dtype
        if shape is None or dtype is None:
            return {}
        if any(isinstance(dim, int) and dim < 0 for dim in shape):
            return {}  # on which onnx 1.23 may crash
        name = operand.name or ""
        types[name] = onnx.helper.make_tensor_type_proto(dtype.value, shape)
        numbers = symbolic.vector(operand) if dtype.is_integer() and len(shape) <= 1 else None
        if numbers is not None and all(isinstance(number, int) for number in numbers):
            array = np.array(numbers, dtype.numpy()).reshape(-1 if shape else ())
            data[name] = onnx.numpy_helper.from_array(array, name)
    home = onnx.GraphProto()
    proto = shape_equivalent(node, home, opset) or whole_node(node)
    types |= {info.name: info.type for info in home.input}
    sizes = {name: known_sizes(kind) for name, kind in types.items()}
    if proto.domain not in ("", DOMAIN):
        return {}
    if is_doubtful(proto, lambda name: sizes.get(name, [])):
        hide(proto)
    try:
        told = _told(opset, proto, types, data)
    except _NO_SHAPE:
        return {}
    outputs = {output.name: output for output in node.outputs if output.name}
    return {outputs[name]: answer for name, answer in told.items() if name in outputs}


def _told(
    opset: int,
    proto: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Return the types of the results of a standard operator or a call of a shape equivalent."""
    if proto.domain == DOMAIN:
        function = next(f for f in FUNCTIONS if f.name == proto.op_type)
        operands = [types[name] for name in proto.input]
        found = onnx.shape_inference.infer_function_output_types(
            function, operands, list(proto.attribute)
        )
        return dict(zip(proto.output, found, strict=True))
    schema = onnx.defs.get_schema(proto.op_type, opset, "")
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)


def _dims(answer: onnx.TypeProto) -> Shape:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in answer.tensor_type.shape.dim
    )
