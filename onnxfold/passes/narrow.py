"""Weights that a model stores in fewer bits than it computes with.

The numbers of a half float behind a Cast to float32 are exact, and so is what the model makes of
them but for float32 roundings.  An edit would round them to half floats again, a thousand times the
error, so such a weight stays as it is.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.refusal import Refusal, RefusalCode

__all__ = ["refuse_narrow"]

_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
# What passes numbers on as they are stored.
_MOVES = frozenset(
    {
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def refuse_narrow(view: ModelInfo, value: ir.Value) -> Refusal | None:
    """Say why a weight must keep its numbers: something computes with them in a wider type."""
    tensor = view.tensor(value)
    if tensor is None or tensor.dtype not in _HALF:
        return None
    waiting, seen = [value], {value}
    while waiting:
        for node in (use.node for use in waiting.pop().uses() if use.node.domain == ""):
            if node.op_type == "Cast" and node.outputs[0].dtype in _WIDE:
                return _refusal(value, tensor, node.outputs[0])
            if node.op_type in _MOVES:
                waiting += [output for output in node.outputs if output not in seen]
                seen.update(node.outputs)
    return None


def _refusal(value: ir.Value, tensor: ir.TensorProtocol, wide: ir.Value) -> Refusal:
    name = value.name or ""
    sentence = (
        f"weight '{name}' is stored as {tensor.dtype} and computed with as {wide.dtype}: changed, "
        "it would be rounded again; store it in the wider type"
    )
    return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (name,))
