"""Which nodes draw random numbers."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.operators import facets
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of

__all__ = ["is_stochastic"]


def is_stochastic(node: ir.Node) -> bool:
    """Whether a node may draw random numbers, as Dropout does when it is told to train."""
    row = row_of(node)
    drops = row.family is Family.DROPOUT and len(node.inputs) > 2 and node.inputs[2] is not None
    return facets.stochastic(row) or drops
