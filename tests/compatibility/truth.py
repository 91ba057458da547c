"""The truth that every runtime is compared with: the exported model in float64.

The graph is widened (weights, constants and casts of floating point become float64) and run by
`onnx.reference`, which computes each operator by numpy in the type of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

__all__ = ["relative_error", "truth", "widened"]

Array = NDArray[np.generic]
_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16)


def truth(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a model of float32 or float16, computed in float64."""
    wide = {name: _wide(array) for name, array in inputs.items()}
    outputs: list[Array] = ReferenceEvaluator(widened(model)).run(None, wide)
    assert all(output.dtype == np.float64 for output in outputs)
    return outputs


def relative_error(outputs: Iterable[Array], true: Iterable[Array]) -> float:
    """Return the largest |y - t| / max|t| over all outputs; infinite for NaN or another shape."""
    return max(_error(y, t) for y, t in zip(outputs, true, strict=True))


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with float64 instead of float32 or float16."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    assert not wide.functions, "an exporter's model has no functions"
    for tensor in wide.graph.initializer:
        _widen_tensor(tensor)
    for value in (*wide.graph.input, *wide.graph.output):
        kind = value.type.tensor_type
        if kind.elem_type in _NARROW:
            kind.elem_type = TensorProto.DOUBLE
    del wide.graph.value_info[:]
    for node in wide.graph.node:
        _widen_node(node)
    return wide


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        assert attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        if attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        if attribute.name == "to" and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        assert attribute.name not in ("value_float", "value_floats"), "exporters write `value`"


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _NARROW:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype in (np.float32, np.float16) else array


def _error(y: Array, t: Array) -> float:
    if y.shape != t.shape or not np.isfinite(y).all():
        return float("inf")
    return float(np.abs(y.astype(np.float64) - t).max() / np.abs(t).max())
