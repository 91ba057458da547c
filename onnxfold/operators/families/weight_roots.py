"""The constant from which layout operators compute an operand."""

from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.graph.operands import producer_of
from onnxfold.operators import facets
from onnxfold.operators.families.reactions import before_layout
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.row import OF_CODES
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class EditPlace:
    """The constant from which layouts compute an operand, and its reader there.

    ``channels`` and ``outer`` are in the coordinates of the constant.  ``fixed``: its numbers are
    known and cannot change, for it is what a node dequantizes, or the codes of a layer.
    """

    value: ir.Value
    reader: Reader
    channels: Channels
    outer: Channels
    fixed: bool = False


def root_of(
    view: ModelInfo, reader: Reader, channels: Channels, outer: Channels, *, fixed: bool = False
) -> EditPlace | Refusal:
    """Return the constant upstream of an operand, through layouts without other readers.

    ``fixed``: one that cannot change will do as well.
    """
    holder = reader
    value = reader.node.inputs[reader.index] if reader.index < len(reader.node.inputs) else None
    while value is not None:
        if fixed and (row_of(holder.node).layer in OF_CODES or _dequantised(value)):
            return EditPlace(value, holder, channels, outer, fixed=True)
        tensor = view.tensor(value)
        if tensor is not None:
            if row_of(reader.node).layer in OF_CODES:
                return refuse(RefusalCode.QUANTISED, reader.node, "has a quantized weight")
            if tensor.dtype not in FLOATS:
                sentence = f"has a weight of type {tensor.dtype}"
                return refuse(RefusalCode.UNSUPPORTED_TYPE, reader.node, sentence)
            return EditPlace(value, holder, channels, outer)
        node = value.producer()
        back, rest = (before_layout(view, value, each, rows=True) for each in (channels, outer))
        if node is None or back is None or rest is None:
            break
        if len(value.uses()) != 1 or value.is_graph_output():
            sentence = "shares its weight with other nodes through a layout"
            return refuse(RefusalCode.SHARED_WEIGHT, reader.node, sentence)
        holder = Reader(node, 0)
        value, channels = back
        outer = rest[1]
    if _dequantised(value):
        return refuse(RefusalCode.QUANTISED, reader.node, "has a quantized weight; fuse first")
    return refuse(RefusalCode.DYNAMIC_WEIGHT, reader.node, "has a weight that is not a constant")


def _dequantised(value: ir.Value | None) -> bool:
    producer = producer_of(value)
    return producer is not None and facets.quantised(row_of(producer))
