"""Operators that onnx's own reference implementation computes correctly in float64.

Only the operators whose rows choose it: some of onnx 1.23's compute in float32 whatever their
inputs (AffineGrid, LinearAttention, DequantizeLinear), ignore attributes (LSTM: clip,
sequence_lens), or use the defaults of the newest opset (Softmax).
"""

from typing import Any

import onnx_ir as ir
from onnx.reference.ops import load_op

from onnxfold.check.reference.kernel import Call, Datum, Output, Precision, kernel
from onnxfold.operators.table import op_types

# Attributes that name the compute type, which under FLOAT64 is float64 anyway.
_COMPUTE_TYPES = frozenset({"softmax_precision", "stash_type"})


def _operator(call: Call) -> Any:
    proto = ir.to_proto(call.node)
    del proto.attribute[:]
    for attribute in call.attributes.values():
        if call.precision is Precision.NATIVE or attribute.name not in _COMPUTE_TYPES:
            proto.attribute.append(ir.to_proto(attribute))
    kind: Any = load_op(proto.domain, proto.op_type, call.version)
    parameters = {"log": _ignore, "opsets": {"": call.version}, "new_ops": None, "verbose": 0}
    return kind(proto, parameters)


def _ignore(pattern: str, *values: object) -> None:
    """Discard the log of the reference implementation."""


def delegated(call: Call, *inputs: Datum) -> Output:
    """Return the result of onnx's implementation of the operator."""
    results = _operator(call).run(*inputs)
    return tuple(results)


kernel(*op_types("delegated"))(delegated)
