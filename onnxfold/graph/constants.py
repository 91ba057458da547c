"""Values that do not depend on the model's inputs, their arrays, and the types of these.

A value is constant if it is an initializer that no caller can override, the output of a Constant
node, or computed from such values by deterministic operators.
"""

from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxfold.graph.dims import Shape
from onnxfold.operators import facets
from onnxfold.operators.table import row_of

Array = npt.NDArray[np.generic]
Float64 = npt.NDArray[np.float64]
# Bits of the exponent, and of the significand with the leading one.
_BITS = {
    ir.DataType.FLOAT16: (5, 11),
    ir.DataType.BFLOAT16: (8, 8),
    ir.DataType.FLOAT: (8, 24),
    ir.DataType.DOUBLE: (11, 53),
}
# The types in which norms compute, and of editable weights.
FLOATS = frozenset(_BITS)
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def digits(dtype: ir.DataType | None) -> int:
    """Return the binary digits of a significand; 0 for any other type."""
    return 0 if dtype is None or dtype not in _BITS else _BITS[dtype][1]


def smallest_normal(dtype: ir.DataType) -> float:
    """Return the smallest number that has all digits of a float type."""
    exponent, _ = _BITS[dtype]
    return float(2.0 ** (2 - 2 ** (exponent - 1)))


def is_narrowing(source: ir.DataType | None, target: ir.DataType | None) -> bool | None:
    """Whether a Cast between float types may round; None for other casts."""
    if source not in _BITS or target not in _BITS:
        return None
    return any(after < before for before, after in zip(_BITS[source], _BITS[target], strict=True))


TensorOf: TypeAlias = Callable[[ir.Value | None], ir.TensorProtocol | None]
# Errors of onnx's evaluator for operands that an operator does not accept.
_NO_RESULT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def attribute_tensor(attribute: ir.Attr) -> ir.TensorProtocol:
    """Return the tensor of an attribute; raises TypeError for any other attribute.

    Attr.as_tensor checks every method of the protocol, which takes longer than the rest.
    """
    if attribute.type is not ir.AttributeType.TENSOR or attribute.value is None:
        raise TypeError(f"attribute '{attribute.name}' holds no tensor")
    return cast("ir.TensorProtocol", attribute.value)


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or Constant node; None for other values.

    An initializer that is also a graph input is a default that callers may override, so it is not a
    constant.
    """
    if value is None:
        return None
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "":
        return None
    return _constant_node_tensor(node)


def default_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the result of :func:`constant_tensor`, or a default that callers may override."""
    default = value is not None and value.is_initializer()
    return value.const_value if value is not None and default else constant_tensor(value)


def _constant_node_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return attribute_tensor(attribute)
        if name in ("value_float", "value_int"):
            dtype = np.float32 if name == "value_float" else np.int64
            return ir.Tensor(np.asarray(attribute.value, dtype=dtype))
        if name in ("value_floats", "value_ints"):
            dtype = np.float32 if name == "value_floats" else np.int64
            return ir.Tensor(np.asarray(attribute.value, dtype=dtype))
    return None


class ConstantFolder:
    """Evaluator of small constant values on demand, each computed once.

    ``limit`` bounds the number of elements of every tensor involved, so that a weight is never
    read; a tensor that is ``costly``, being computed from weights, is unknown. ``wide`` computes
    with floats as float64, without the roundings of the model's own types. ``tensor_of`` returns
    the stored tensor of a value.
    """

    def __init__(
        self,
        opset: int,
        shape: Callable[[ir.Value | None], Shape | None],
        limit: int,
        *,
        wide: bool = False,
        tensor_of: TensorOf = constant_tensor,
    ):
        self._opset = opset
        self._tensor_of = tensor_of
        self._shape_of = shape
        self._limit = limit
        self._wide = wide
        self._known: dict[ir.Value, Array | None] = {}

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a constant value of at most ``limit`` elements, or None."""
        if value is None:
            return None
        # No recursion: expressions may be thousands of operators long.
        pending = [] if value in self._known else [value]
        while pending:
            current = pending[-1]
            self._known.setdefault(current, None)  # a cycle, if one existed, is not constant
            operand = self._unknown_operand(current)
            if operand is not None:
                pending.append(operand)
            else:
                self._known[pending.pop()] = self._evaluate(current)
        return self._known[value]

    def _unknown_operand(self, value: ir.Value) -> ir.Value | None:
        """Return the operand to evaluate next for the value; None if all or enough are known."""
        node = value.producer()
        if node is None or not _is_folded(node) or not facets.reads_elements(row_of(node)):
            return None
        for operand in node.inputs:
            if operand is not None and operand not in self._known:
                return operand
            if operand is not None and self._known[operand] is None:
                return None
        return None

    def _evaluate(self, value: ir.Value) -> Array | None:
        tensor = self._tensor_of(value)
        if tensor is not None:
            cheap = tensor.size <= self._limit and not getattr(tensor, "costly", False)
            return self._widened(tensor.numpy()) if cheap else None
        node = value.producer()
        if node is None or not _is_folded(node):
            return None
        if not facets.reads_elements(row_of(node)):
            return self._shape(node)
        picked = self._picked_size(node)
        if picked is not None:
            return picked
        inputs: list[Array | None] = []
        for operand in node.inputs:
            array = None if operand is None else self._known[operand]
            if operand is not None and array is None:
                return None
            inputs.append(array)
        results = self.results(node, inputs) if self._is_small(node, inputs) else None
        return None if results is None else results[value.index() or 0]

    def results(self, node: ir.Node, inputs: list[Array | None]) -> list[Array] | None:
        """Return the results of a node from the arrays of its operands, or None if it fails."""
        try:
            if _begins_before(node, inputs):
                return None
            if node.op_type == "Unsqueeze" and "axes" in node.attributes and inputs[0] is not None:
                # onnx's evaluator inserts one axis after the other, in any order.
                axes = tuple(node.attributes.get_ints("axes", ()))
                return [np.expand_dims(inputs[0], axes)]
            if self._wide and node.op_type == "Cast" and node.outputs[0].dtype in FLOATS:
                return None if inputs[0] is None else [inputs[0].astype(np.float64)]
            return [self._widened(array) for array in self._compute(node, inputs)]
        except _NO_RESULT:
            return None  # it fails wherever it runs, so its value is unknown

    def _widened(self, array: Array) -> Array:
        # bfloat16 has kind V, being a type that numpy does not know
        return array.astype(np.float64) if self._wide and array.dtype.kind in "fV" else array

    def _is_small(self, node: ir.Node, inputs: list[Array | None]) -> bool:
        """Whether the results are small.

        For these four operators a few numbers can request any size.
        """
        shapes = (self._shape_of(output) for output in node.outputs)
        elements = [_product([d for d in shape if isinstance(d, int)]) for shape in shapes if shape]
        if node.op_type in ("ConstantOfShape", "Expand", "Tile"):
            elements.append(_product(inputs[-1]))
            if node.op_type == "Tile":
                elements[-1] *= 1.0 if inputs[0] is None else inputs[0].size
        elif node.op_type == "Range":
            start, limit, delta = (
                float(x.flat[0]) if x is not None and x.size else float("nan") for x in inputs
            )
            elements.append(abs(limit - start) / abs(delta) if delta else float("inf"))
        return all(count <= self._limit for count in elements)

    def _shape(self, node: ir.Node) -> Array | None:
        operand = node.inputs[0]
        shape = self._shape_of(operand)
        if shape is None:
            return None
        dims = _read_by(node, shape)
        if not all(isinstance(dim, int) for dim in dims):
            return None
        array = np.asarray(dims, dtype=np.int64)
        return array if node.op_type == "Shape" else np.asarray(np.prod(array), dtype=np.int64)

    def _picked_size(self, node: ir.Node) -> Array | None:
        """Return sizes that a Gather picks from a shape in which other sizes are unknown."""
        data = node.inputs[0]
        maker = None if data is None else data.producer()
        if node.op_type != "Gather" or node.domain or maker is None or maker.op_type != "Shape":
            return None
        indices, shape = self.array(node.inputs[1]), self._shape_of(maker.inputs[0])
        if indices is None or shape is None:
            return None
        dims = _read_by(maker, shape)
        if any(not -len(dims) <= index < len(dims) for index in indices.reshape(-1).tolist()):
            return None
        sizes = [dims[int(index)] for index in indices.reshape(-1)]
        if not all(isinstance(size, int) for size in sizes):
            return None
        return np.asarray(sizes, dtype=np.int64).reshape(indices.shape)

    def _compute(self, node: ir.Node, inputs: list[Array | None]) -> list[Array]:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator  # slow to import, rarely needed

        proto = whole_node(node)
        feeds = {name: array for name, array in zip(proto.input, inputs, strict=True) if name}
        # In a model, because a node by itself is read with the newest opset (onnx 1.23).
        operands = [helper.make_empty_tensor_value_info(name) for name in feeds]
        results = [helper.make_empty_tensor_value_info(name) for name in proto.output if name]
        model = helper.make_model(
            helper.make_graph([proto], "constant", operands, results),
            opset_imports=[helper.make_opsetid("", self._opset)],
        )
        with np.errstate(all="ignore"):  # overflow is infinite here as it is where a model runs
            computed = ReferenceEvaluator(model).run(None, feeds)
        by_name = dict(zip((info.name for info in results), computed, strict=True))
        return [np.asarray(by_name[name]) if name else np.zeros(0) for name in proto.output]


def _is_folded(node: ir.Node) -> bool:
    return row_of(node).foldable


def _begins_before(node: ir.Node, inputs: list[Array | None]) -> bool:
    """Whether a Slice goes backwards from before the first element.

    ONNX then starts at that element, onnx's evaluator at none.
    """
    if node.op_type != "Slice" or len(inputs) < 5 or inputs[4] is None:
        return False
    data, starts, _, axes, steps = map(np.asarray, inputs)
    places = range(starts.size) if inputs[3] is None else axes.tolist()
    bounds = zip(places, starts.tolist(), steps.tolist(), strict=True)
    return any(step < 0 and start < -data.shape[axis] for axis, start, step in bounds)


def _read_by(node: ir.Node, shape: Shape) -> Shape:
    """Return the sizes that a Shape node reads."""
    start = node.attributes.get_int("start", 0)
    return shape[start : node.attributes.get_int("end", len(shape))]


def _product(sizes: Array | list[int] | None) -> float:
    if sizes is None:
        return float("inf")
    return float(np.prod(np.asarray(sizes, dtype=np.float64)))


def in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return the tensor, read or computed.

    onnx's own evaluation and inference cannot read external data, and serializing a lazy tensor
    would wrap its errors.
    """
    if not isinstance(tensor, (ir.ExternalTensor, ir.LazyTensor)):
        return tensor
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)


def whole_node(node: ir.Node) -> onnx.NodeProto:
    """Return the node as a protobuf with all its tensors embedded."""
    proto = ir.serde.serialize_node(node)
    for attribute in proto.attribute:
        if attribute.t.data_location == onnx.TensorProto.EXTERNAL:
            tensor = in_memory(node.attributes[attribute.name].as_tensor())
            attribute.t.CopyFrom(ir.serde.serialize_tensor(tensor))
    return proto
