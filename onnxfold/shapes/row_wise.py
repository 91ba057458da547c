"""An input without a declared shape from which a model reads rows: channels along the last axis.

If every operator that sees the input works on each row separately, whatever axes precede the
channels, the model does the same for any rank, and rank two is enough to show it.
"""

from collections.abc import Mapping

import onnx_ir as ir

from onnxfold.graph.dims import Shape
from onnxfold.graph.model_info import ModelInfo, operator
from onnxfold.graph.operands import operand
from onnxfold.graph.traversal import reached
from onnxfold.operators import facets
from onnxfold.operators.row import Layer
from onnxfold.operators.table import row_of
from onnxfold.shapes.named_sizes import own_names

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_ALONG_ROWS = frozenset({"LogSoftmax", "Softmax"})
_ROWS = 2
_NEGATIVE_AXES_SINCE = 11  # the first opset that can express this for axes


def assume_rows(view: ModelInfo, told: Mapping[ir.Value, Shape | None] | None = None) -> None:
    """Give the only input without a shape two axes, or as many as its results have.

    ``told``: declared shapes, which the values lack for now.
    """
    value = _shapeless(view) if view.opset >= _NEGATIVE_AXES_SINCE else None
    rows = None if value is None else _rows(view, value)
    if value is None or rows is None:
        return
    shapes = [view.shape(each) if told is None else told.get(each) for each in rows]
    ranks = {len(shape) for shape in shapes if shape}
    if len(ranks) > 1:
        return
    names = own_names(value, ranks.pop() if ranks else _ROWS)
    value.shape = ir.Shape([*names[:-1], _width(view, value) or names[-1]])
    view.forget_shape(value)


def width_of_rows(model: ir.Model, value: ir.Value) -> int | None:
    """Return the number of channels of an input of rows; None for other inputs, or if unknown."""
    view = ModelInfo(model)
    known = value is _shapeless(view) and _rows(view, value) is not None
    return _width(view, value) if known else None


def _shapeless(view: ModelInfo) -> ir.Value | None:
    """Return the only input without a shape, or None."""
    inputs = [value for value in view.model.graph.inputs if not value.is_initializer()]
    found = [value for value in inputs if value.shape is None and value.dtype is not None]
    return found[0] if len(found) == 1 else None


def _rows(view: ModelInfo, value: ir.Value) -> list[ir.Value] | None:
    """Return the values computed from rows of a value, or None if an operator sees more of it."""
    found = dict.fromkeys(reached([value], _results))
    nodes = {use.node for each in found for use in each.uses()}
    if not all(n.graph is view.model.graph and _keeps_rows_apart(view, n) for n in nodes):
        return None
    others = {v for node in nodes for v in node.inputs if v is not None and v not in found}
    small = all(view.is_constant(v) and _is_small(view, v) for v in others)
    return list(found) if small else None


def _results(value: ir.Value) -> list[ir.Value]:
    return [output for use in value.uses() for output in use.node.outputs]


def _is_small(view: ModelInfo, value: ir.Value) -> bool:
    """Whether a constant cannot add an axis to its other operand."""
    weights = all(_is_product(use.node) and use.idx == 1 for use in value.uses())
    axes = all(facets.reduces(row_of(use.node)) for use in value.uses())
    rank = view.rank(value)
    tensor = view.tensor(value)
    rank = len(tensor.shape) if rank is None and tensor is not None else rank
    return axes or (rank is not None and (rank == _ROWS if weights else rank <= 1))


def _is_product(node: ir.Node) -> bool:
    return operator(node) == "MatMul" and row_of(node).layer is Layer.MATMUL


def _keeps_rows_apart(view: ModelInfo, node: ir.Node) -> bool:
    """Whether an operator treats each row the same, for any number of axes."""
    row = row_of(node)
    if _is_product(node):
        return True
    if node.op_type in _NORMS or node.op_type in _ALONG_ROWS:
        default = 1 if node.op_type in _ALONG_ROWS and view.opset < 13 else -1
        return node.attributes.get_int("axis", default) == -1
    if facets.reduces(row):
        return view.axes(node) == (-1,) and node.attributes.get_int("keepdims", 1) == 1
    return facets.reads_elements(row) and facets.positionwise(row)


def _width(view: ModelInfo, value: ir.Value) -> int | None:
    """Return the size of the last axis, as determined by the readers of a value."""
    for use in value.uses():
        tensor = view.tensor(operand(use.node, 1))
        if use.idx == 0 and tensor is not None and len(tensor.shape):
            size = tensor.shape.numpy()[0]
            if _is_product(use.node) or (use.node.op_type in _NORMS and size > 1):
                return int(size)
    return None
