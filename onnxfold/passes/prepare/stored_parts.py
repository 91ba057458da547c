"""Parts of weights, and reshaped weights, stored separately.

dynamo leaves large weights as modules store them: the projection of a decoder's cross-attention is
a Split of one weight. Stored separately, each part is a weight into which gamma, beta and means can
move.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo
from onnxfold.graph.edit import add_constant, redirect, sweep
from onnxfold.operators.families.cut_parts import cut_of
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.targets.costs import elements

_Index: TypeAlias = tuple[slice | int, ...]


def store_parts(view: ModelInfo) -> int:
    """Store the parts of weights in a typed working copy; return how many weights had parts.

    This includes parts of parts. A weight stays whole if something reads all of it, or if its parts
    overlap.
    """
    nodes = [node for node in view.nodes() if node.inputs]
    return sum(node.graph is not None and _store(view, node.inputs[0]) for node in nodes)


def _store(view: ModelInfo, weight: ir.Value | None) -> bool:
    tensor = view.tensor(weight)
    if weight is None or tensor is None or tensor.dtype not in FLOATS or weight.is_graph_output():
        return False
    parts = dict(_parts(view, weight))
    nodes = dict.fromkeys(use.node for use in weight.uses())
    read = [output for node in nodes for output in node.outputs]
    sizes = [elements(view.shape(part)) for part in parts]
    if not parts or len(parts) != len(read) or sum(sizes) > tensor.size:
        return False
    for part, index in parts.items():
        stored = _stored(view, tensor, part, index)
        if part.uses() and isinstance(weight.graph, ir.Graph):
            add_constant(weight.graph, stored)
            redirect(part, stored)
    sweep(nodes)
    return True


def _parts(view: ModelInfo, weight: ir.Value) -> Iterator[tuple[ir.Value, _Index]]:
    """Yield the parts and other shapes of a weight, and which of its elements each has."""
    for use in weight.uses():
        for value in use.node.outputs if use.idx == 0 else ():
            index = _index(view, use.node, value)
            local = use.node.graph is weight.graph and not value.is_graph_output()
            if index is not None and local and value.name:
                yield value, index


def _index(view: ModelInfo, node: ir.Node, value: ir.Value) -> _Index | None:
    shape = view.shape(value)
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    if row_of(node).family is Family.RESHAPE and view.is_constant(node.inputs[-1]):
        return ()
    cut = cut_of(view, value)
    if cut is None:
        return None
    picks = row_of(node).family is Family.GATHER
    return (*cut.index[: cut.axis], cut.start) if picks else cut.index


def _stored(view: ModelInfo, tensor: ir.TensorProtocol, part: ir.Value, index: _Index) -> ir.Value:
    shape = ir.Shape(view.shape(part) or ())

    def taken() -> ir.TensorProtocol:
        elements = np.ascontiguousarray(tensor.numpy()[index]).reshape(shape.numpy())
        return ir.Tensor(elements, dtype=tensor.dtype, name=part.name)

    lazy = ir.LazyTensor(taken, dtype=tensor.dtype, shape=shape, name=part.name)
    return ir.Value(name=part.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=lazy)
