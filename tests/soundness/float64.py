"""An evaluator that is not onnxfold's: onnx's own, in float64 whatever the model's types are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.operators.operators import OPERATORS
from tests.operators.sample import Array

__all__ = ["evaluate", "relative_error", "sizes_read", "widened"]

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, Array], operators: Sequence[type] = ()
) -> list[Array]:
    """Run a model in float64; ``operators`` take the place of onnx's evaluators."""
    known = {(op.op_domain, op.__name__): op for op in (*OPERATORS, *operators)}
    session = ReferenceEvaluator(widened(model), new_ops=list(known.values()))
    wide = {k: _wide(a) for k, a in feeds.items()}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        # Of a pooling window that lies in the padding, which is NaN in both models.
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        return [np.asarray(result) for result in session.run(None, wide)]


def relative_error(expected: Sequence[Array], got: Sequence[Array]) -> float:
    """The largest difference, relative to the largest finite element of its output."""
    return max(map(_difference, expected, got), default=0.0)


def _difference(a: Array, b: Array) -> float:
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return float("inf")
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else float("inf")
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return float("inf")
    scale = max(1.0, float(np.abs(a[finite]).max(initial=0.0)))
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with DOUBLE for every narrower float; its numbers stay the same."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in (*wide.graph.input, *wide.graph.output):
        _widen_type(value)
    _widen_graph(wide.graph)
    for function in wide.functions:
        nodes = [new for node in function.node for new in _widened(node)]
        del function.node[:]
        function.node.extend(nodes)
    return wide


def sizes_read(graph: onnx.GraphProto) -> set[str]:
    """The inputs of Resize other than x: its type is fixed, and its numbers are sizes."""
    return {name for node in graph.node if node.op_type == "Resize" for name in node.input[1:]}


def _wide(array: Array) -> Array:
    floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if floating else array


def _widen_type(value: onnx.ValueInfoProto) -> None:
    if value.type.tensor_type.elem_type in _NARROW:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE


def _widen_graph(graph: onnx.GraphProto) -> None:
    kept = sizes_read(graph)
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        _widen_type(value)
    del graph.value_info[:]
    nodes = [new for node in graph.node for new in _widened(node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _widened(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the node with wide tensors; a float attribute makes a FLOAT, hence a Cast.

    Outputs that are left out get a name, under which onnx's evaluator would keep their values for
    all operators that leave out an input.
    """
    for place, name in enumerate(node.output):
        node.output[place] = name or f"{node.output[0]}.unread{place}"
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = helper.make_tensor("zero", TensorProto.DOUBLE, [1], [0.0])
        node.attribute.append(helper.make_attribute("value", zero))
    for attribute in node.attribute:
        if attribute.name == "to" and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        elif attribute.HasField("t"):
            _widen_tensor(attribute.t)
        elif attribute.HasField("g"):
            _widen_graph(attribute.g)
        elif attribute.name in ("value_float", "value_floats"):
            name = node.output[0]
            node.output[0] = f"{name}.float"
            cast = helper.make_node("Cast", [node.output[0]], [name], to=TensorProto.DOUBLE)
            return [node, cast]
    return [node]


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
