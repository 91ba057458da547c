"""Which nodes draw random numbers."""

import onnx_ir as ir

from onnxfold.graph import constant_tensor
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of


def is_stochastic(node: ir.Node) -> bool:
    """Whether a node may draw random numbers, as Dropout does in training mode."""
    row = row_of(node)
    return row.random or (row.family is Family.DROPOUT and _may_train(node))


def _may_train(node: ir.Node) -> bool:
    told = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = constant_tensor(told)
    return told is not None and (tensor is None or bool(tensor.numpy().any()))
